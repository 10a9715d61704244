"""The networks of Table 2 without padding, held against the plain padded ones; reviews as numbers."""

import numpy as np
import pytest
import torch

from attnbook import data
from attnbook.global_attention import review_networks, reviews
from attnbook.global_attention.review_networks import BLOCK, NETWORKS, ReviewNetwork, ReviewShape, initial_weights
from attnbook.global_attention.reviews import EncodedReviews, encode, load_corpus

P, T, WIDTH, VOCABULARY = BLOCK + 7, 5, 7, 41
SHAPE = ReviewShape(P, T, WIDTH)
LENGTHS = np.array([1, P, 0, 23, P - 3, 2, 11])


def draw_reviews(lengths, seed=0):
    rng = np.random.default_rng(seed)
    starts = np.concatenate([[0], np.cumsum(lengths)])
    return EncodedReviews(rng.integers(1, VOCABULARY, starts[-1]), starts, rng.integers(0, 2, len(lengths)) * 1.0)


@pytest.fixture(scope="module")
def vectors():
    table = torch.randn(VOCABULARY, T, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    table[0] = 0
    return table


def plain_logits(network, p, reviews, vectors):
    """Every review padded to all positions; what torch would be asked for."""
    inputs = torch.zeros(len(reviews), P, T, dtype=torch.float64)
    for i in range(len(reviews)):
        inputs[i, : reviews.lengths[i]] = vectors[reviews.words(i)]
    if network != "baseline":
        query, key, value = (inputs @ p[name].mT for name in ("query", "key", "value"))
        scores = query @ key.mT / T**0.5
        inputs = torch.softmax(scores * (network == "self_attention"), -1) @ value
    hidden = torch.relu(inputs.flatten(1) @ p["first"].flatten(0, 1) + p["bias"])
    return hidden @ p["decoder"] + p["decoder_bias"]


def plain_loss(logits, reviews):
    return torch.nn.functional.binary_cross_entropy_with_logits(logits, torch.tensor(reviews.labels))


@pytest.mark.parametrize("network", NETWORKS)
def test_loss_logits_and_gradients_equal_those_of_the_padded_network(network, vectors):
    reviews, chosen = draw_reviews(LENGTHS), np.random.default_rng(1).permutation(len(LENGTHS))
    ours, plain = ReviewNetwork(network, SHAPE, vectors, seed=1), initial_weights(SHAPE, 1, vectors)
    leaves = {name: tensor.requires_grad_() for name, tensor in plain.items()}
    logits = plain_logits(network, leaves, reviews.take(chosen), vectors)
    expected = plain_loss(logits, reviews.take(chosen))
    expected.backward()
    assert ours.step(reviews, chosen) == pytest.approx(expected.item(), abs=1e-12)
    torch.testing.assert_close(ours.answer(ours.parameters, reviews, chosen), logits.detach(), rtol=1e-9, atol=1e-12)
    for name, tensor in ours.parameters.items():
        whole = leaves[name].grad
        assert tensor.grad.shape == whole.shape or network == "uniform_attention"
        torch.testing.assert_close(
            tensor.grad, whole if tensor.grad.shape == whole.shape else whole[0], rtol=1e-9, atol=1e-14
        )


@pytest.mark.parametrize("ordinary", [False, True])
def test_uniform_attention_trains_as_a_bag_of_words_with_a_larger_step(ordinary, vectors):
    """Against all positions padded, with queries and keys of zero, under Adam. Not with an ordinary step."""
    reviews = draw_reviews([3, 19, 11, 7, 13, 0, 1, 23])
    ours, plain = ReviewNetwork("uniform_attention", SHAPE, vectors, seed=0), initial_weights(SHAPE, 0, vectors)
    leaves = [tensor.requires_grad_() for name, tensor in plain.items() if name not in ("query", "key")]
    groups = [{"params": list(ours.parameters.values())}] if ordinary else ours.groups(0.01)
    short, long = torch.optim.Adam(groups, lr=0.01), torch.optim.Adam(leaves, lr=0.01)
    for step in range(6):
        chosen = np.arange(4) + 4 * (step % 2)
        ours.step(reviews, chosen)
        short.step()
        long.zero_grad()
        plain_loss(
            plain_logits("uniform_attention", plain, reviews.take(chosen), vectors), reviews.take(chosen)
        ).backward()
        long.step()
    whole = plain_logits("uniform_attention", plain, reviews, vectors).detach()
    difference = (ours.answer(ours.parameters, reviews, np.arange(8)) - whole).abs().max()
    assert difference > 1e-3 if ordinary else difference <= 1e-10


def test_a_wrong_output_of_padding_is_noticed(monkeypatch, vectors):
    honest = review_networks.attend
    monkeypatch.setattr(review_networks, "attend", lambda *given: (honest(*given)[0], 2 * honest(*given)[1]))
    with pytest.raises(AssertionError):
        test_loss_logits_and_gradients_equal_those_of_the_padded_network("self_attention", vectors)


def test_all_networks_of_a_seed_start_with_the_same_layers(vectors):
    one, two, three = (ReviewNetwork(network, SHAPE, vectors, seed=3).parameters for network in NETWORKS)
    assert torch.equal(one["first"], two["first"])
    assert torch.equal(two["first"].sum(0), three["first"])
    assert one["first"].abs().max() <= (P * T) ** -0.5


def test_accuracy_counts_the_signs_that_are_right(vectors):
    reviews, network = draw_reviews(np.arange(70)), ReviewNetwork("baseline", SHAPE, vectors, seed=1)
    right = (network.answer(network.parameters, reviews, np.arange(70)).numpy() > 0) == (reviews.labels == 1)
    assert network.accuracy(reviews) == pytest.approx(100 * right.mean())


def test_bad_arguments_are_refused_by_name(vectors):
    with pytest.raises(ValueError, match="vectors: expected 5 entries and a row 0 of zeros"):
        ReviewNetwork("baseline", SHAPE, vectors + 1, seed=0)
    with pytest.raises(ValueError, match=f"reviews: expected at most {P} words, got {P + 1}"):
        ReviewNetwork("baseline", SHAPE, vectors, seed=0).step(draw_reviews([1, P + 1]), np.arange(2))
    with pytest.raises((ValueError, TypeError), match="network"):
        ReviewNetwork("flat", SHAPE, vectors, seed=0)
    with pytest.raises(ValueError, match="width: expected at least 1, got 0"):
        ReviewShape(1, 1, 0)


def test_reviews_become_ids_in_order_without_unknown_words_and_cut():
    encoded = encode([["b", "?", "a", "b"], [], ["a"]], [1, 0, 1], {"a": 1, "b": 2}, n_positions=2)
    assert encoded.ids.tolist() == [2, 1, 1]
    assert encoded.lengths.tolist() == [2, 0, 1]
    assert encoded.take(np.array([2, 0])).ids.tolist() == [1, 2, 1]


def test_bad_reviews_are_refused_by_name():
    with pytest.raises(ValueError, match="starts: expected 3 for 2 reviews, got 2"):
        encode([["a"]], [1, 0], {}, 3)
    with pytest.raises(ValueError, match="starts: expected 2 for 1 reviews, got 1"):
        EncodedReviews(np.zeros(0, int), np.zeros(1, int), np.zeros(1))


def test_synthetic_reviews_have_vectors_labels_and_a_source_that_says_so():
    corpus = load_corpus("synthetic", "", dimension=7, n_positions=11, n_test=13)
    assert len(corpus.test) == 13
    assert corpus.vectors.shape[1] == 7
    assert not corpus.vectors[0].any()
    assert corpus.train.lengths.max() == 11
    assert set(corpus.train.labels) == {0.0, 1.0}
    assert "not IMDB" in corpus.source
    with pytest.raises(ValueError, match="n_positions: expected at least 1, got 0"):
        load_corpus("synthetic", "", dimension=7, n_positions=0, n_test=13)
    with pytest.raises(ValueError, match="n_test: expected between 1 and 1000, got 0"):
        load_corpus("synthetic", "", dimension=7, n_positions=11, n_test=0)


def test_missing_reviews_are_an_error_that_says_how_to_get_them(monkeypatch, tmp_path):
    monkeypatch.delenv("ATTNBOOK_DATA", raising=False)
    monkeypatch.setenv("ATTNBOOK_CACHE", str(tmp_path))
    with pytest.raises(data.DataError, match=r"attnbook data fetch imdb.*attnbook data train-vectors"):
        load_corpus("imdb", "imdb_ppmi_svd_100d", dimension=100, n_positions=11, n_test=13)


def test_vectors_of_another_size_are_refused(monkeypatch):
    made = data.Embeddings(("fine", "film"), np.ones((2, 3), np.float32), "made")
    texts, labels = ("a fine film",), np.array([1])
    labelled = data.LabelledReviews(texts, labels, texts, labels, made, "made")
    monkeypatch.setattr(reviews, "labelled_reviews", lambda *_: labelled)
    with pytest.raises(ValueError, match="dimension: expected 3, that of 'mine', got 100"):
        load_corpus("imdb", "mine", dimension=100, n_positions=11, n_test=1)
    assert load_corpus("imdb", "mine", dimension=3, n_positions=11, n_test=1).train.ids.tolist() == [1, 2]
