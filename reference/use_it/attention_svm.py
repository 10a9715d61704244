"""The smallest attention matrix that picks given tokens, or the reason for none."""

import numpy as np

from attnbook.mirror_descent.attention_svm import TokenConflictError, attention_svm

rng = np.random.default_rng(0)
tokens = rng.standard_normal((1, 12, 6, 10))  # 1 problem, 12 samples of 6 tokens
queries = tokens[:, :, 0]  # each sample asks with its first token
selected = rng.integers(6, size=(1, 12))

for p in (1.2, 2.0, 3.0):
    found = attention_svm(tokens, queries, selected, p)
    scores = np.einsum("std,de,se->st", tokens[0], found.weight[0], queries[0])
    right = (scores.argmax(axis=1) == selected[0]).all()
    print(f"p = {p}: norm {found.norm[0]:.4f}, {found.support.sum()} support tokens")
    print(f"  picks the right tokens: {right}, with margin {found.margins.min():.6f}")
    print(f"  no norm is smaller by more than a share of {found.gap[0]:.0e}")

# Now sample 7 is sample 2, but wants another token.
tokens[0, 7], selected[0, 7] = tokens[0, 2], (selected[0, 2] + 1) % 6
try:
    attention_svm(tokens, tokens[:, :, 0], selected, p=2.0)
except TokenConflictError as error:
    print(error)
    print("weight of each sample in the proof:", error.conflict.sum(axis=1))
