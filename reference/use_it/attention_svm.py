"""The smallest attention matrix that picks given tokens, with its certificate; and what is said when there is none."""

import numpy as np

from attnbook.mirror_descent.attention_svm import TokenConflictError, attention_svm

rng = np.random.default_rng(0)
tokens = rng.standard_normal((1, 12, 6, 10))  # one problem: 12 samples of 6 tokens in 10 dimensions
queries = tokens[:, :, 0]  # each sample asks with its first token
selected = rng.integers(6, size=(1, 12))

for p in (1.2, 2.0, 3.0):
    found = attention_svm(tokens, queries, selected, p)
    scores = np.einsum("std,de,se->st", tokens[0], found.weight[0], queries[0])
    print(
        f"p = {p}: norm {found.norm[0]:.4f}, smallest margin {found.margins.min():.6f}, "
        f"{found.support.sum()} support tokens, picks the right ones: {(scores.argmax(1) == selected[0]).all()}"
    )
    print(f"  certificate: the smallest possible norm is lower by a share of at most {found.gap[0]:.0e}")

tokens[0, 7], selected[0, 7] = tokens[0, 2], (selected[0, 2] + 1) % 6  # sample 7 is sample 2, but wants another token
try:
    attention_svm(tokens, tokens[:, :, 0], selected, p=2.0)
except TokenConflictError as error:
    print(error)
    print("share of each sample in the proof:", error.conflict.sum(axis=1))
