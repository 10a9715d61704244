"""The networks of Table 2 without padding, held against the plain padded ones; reviews as numbers; training."""

import numpy as np
import pytest
import torch

from attnbook import data
from attnbook.global_attention import review_networks, reviews
from attnbook.global_attention.review_networks import (
    CHUNK,
    Pooled,
    PooledNetwork,
    ReviewNetwork,
    ReviewShape,
    groups_of_similar_length,
    initial_weights,
)
from attnbook.global_attention.reviews import EncodedReviews, encode, load_corpus
from attnbook.global_attention.self_attention.review_table import Recipe, epoch_batches, train

P, T, WIDTH, VOCABULARY = 2 * CHUNK + 3, 5, 7, 41
SHAPE = ReviewShape(P, T, WIDTH)
LENGTHS = np.array([1, P, 0, 23, 77, P - 3, CHUNK + 1, CHUNK, CHUNK - 1, 2, 11])


def draw_reviews(lengths, seed=0):
    rng = np.random.default_rng(seed)
    starts = np.concatenate([[0], np.cumsum(lengths)])
    return EncodedReviews(rng.integers(1, VOCABULARY, starts[-1]), starts, rng.integers(0, 2, len(lengths)) * 1.0)


@pytest.fixture(scope="module")
def vectors():
    table = torch.randn(VOCABULARY, T, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    table[0] = 0
    return table


def plain_logits(network, parameters, weights, reviews, vectors):
    """Every review padded to all positions; what torch would be asked for."""
    inputs = torch.zeros(len(reviews), P, T, dtype=torch.float64)
    for i in range(len(reviews)):
        inputs[i, : reviews.lengths[i]] = vectors[reviews.words(i)]
    if network == "self_attention":
        query, key, value = (inputs @ parameters[name].mT for name in ("query", "key", "value"))
        inputs = torch.softmax(query @ key.mT / T**0.5, -1) @ value
    hidden = torch.relu(inputs.flatten(1) @ weights.flatten(0, 1) + parameters["bias"])
    return hidden @ parameters["decoder"] + parameters["decoder_bias"]


def plain_loss(logits, reviews):
    return torch.nn.functional.binary_cross_entropy_with_logits(logits, torch.tensor(reviews.labels))


@pytest.mark.parametrize("network", ["baseline", "self_attention"])
def test_loss_logits_and_all_gradients_equal_those_of_the_padded_network(network, vectors):
    """What was the claim GA-X-padding-free."""
    reviews = draw_reviews(LENGTHS)
    ours = ReviewNetwork(network, SHAPE, vectors, seed=1)
    small, weights = initial_weights(SHAPE, 1, vectors)
    leaves = {name: tensor.clone().requires_grad_() for name, tensor in small.items()}
    weights.requires_grad_()
    loss = ours.step(reviews, np.random.default_rng(1).permutation(len(LENGTHS)))
    logits = plain_logits(network, leaves, weights, reviews, vectors)
    expected = plain_loss(logits, reviews)
    expected.backward()
    assert loss == pytest.approx(expected.item(), abs=1e-12)
    np.testing.assert_allclose(ours.logits(reviews, batch_size=3), logits.detach().numpy(), atol=1e-12)
    torch.testing.assert_close(ours.parameters["first"].grad, weights.grad, rtol=1e-10, atol=1e-14)
    for name in set(ours.parameters) - {"first"}:
        torch.testing.assert_close(ours.parameters[name].grad, leaves[name].grad, rtol=1e-9, atol=1e-14)


@pytest.mark.parametrize("network", ["baseline", "self_attention"])
def test_training_on_short_reviews_equals_plain_training_of_all_positions(network, vectors):
    """Also of positions that no training review reaches: then a test review reaches them."""
    reviews, test = draw_reviews([3, 19, 11, 7, 13]), draw_reviews([P, 17], seed=1)
    recipe = Recipe(0.01, epochs=3, batch_size=2)
    ours = ReviewNetwork(network, SHAPE, vectors, seed=1)
    losses = train(ours, reviews, recipe, seed=2)
    small, weights = initial_weights(SHAPE, 1, vectors)
    leaves = {name: torch.nn.Parameter(tensor.clone()) for name, tensor in small.items()}
    weights = torch.nn.Parameter(weights)
    optimizer, expected = torch.optim.Adam([weights, *leaves.values()], lr=0.01), []
    for epoch in range(3):
        total = 0.0
        for chosen in epoch_batches(5, recipe, 2, epoch):
            part = reviews.take(chosen)
            optimizer.zero_grad()
            loss = plain_loss(plain_logits(network, leaves, weights, part, vectors), part)
            loss.backward()
            optimizer.step()
            total += loss.item() * len(chosen)
        expected.append(total / 5)
    np.testing.assert_allclose(losses, expected, rtol=1e-9)
    logits = plain_logits(network, leaves, weights, test, vectors).detach().numpy()
    np.testing.assert_allclose(ours.logits(test), logits, rtol=1e-8)


def test_a_wrong_output_of_padding_is_noticed(monkeypatch, vectors):
    honest = review_networks.attend
    monkeypatch.setattr(review_networks, "attend", lambda *given: (honest(*given)[0], 2 * honest(*given)[1]))
    with pytest.raises(AssertionError):
        test_loss_logits_and_all_gradients_equal_those_of_the_padded_network("self_attention", vectors)


@pytest.mark.parametrize("ordinary", [False, True])
def test_with_nothing_to_attend_to_the_network_trains_as_a_bag_of_words_with_a_larger_step(ordinary, vectors):
    """What was the claim GA-X-bag-of-words; queries and keys of zero have zero gradient. Not with an ordinary step."""
    reviews, recipe = draw_reviews([3, 19, 11, 7, 13, 0, 1, 23]), Recipe(0.01, epochs=3, batch_size=4)
    full = ReviewNetwork("self_attention", SHAPE, vectors, seed=0)
    full.parameters["query"].zero_()
    full.parameters["key"].zero_()
    bag = PooledNetwork("uniform_attention", SHAPE, vectors, seed=0)
    if ordinary:
        bag.factor = 1
    pooled = Pooled.of(reviews, vectors.numpy(), "uniform_attention", P)
    train(full, reviews, recipe, seed=0)
    train(bag, pooled, recipe, seed=0)
    difference = np.abs(full.logits(reviews) - bag.logits(pooled)).max()
    assert difference > 1e-3 if ordinary else difference <= 1e-10


def test_only_padding_leaves_the_pooled_path(vectors):
    reviews = draw_reviews([3, 19])
    network = ReviewNetwork("self_attention", SHAPE, vectors, seed=1)
    p = network.parameters
    common = torch.stack([vectors[reviews.words(i)].sum(0) for i in (0, 1)]) @ p["value"].mT / P
    hidden = torch.relu(common @ p["first"].sum(0) + p["bias"])
    expected = hidden @ p["decoder"] + p["decoder_bias"]
    np.testing.assert_allclose(network.logits(reviews, only_padding=True), expected.numpy(), atol=1e-12)


def test_mean_pooling_equals_a_plain_network_of_two_layers(vectors):
    reviews, recipe = draw_reviews([3, 19, 11, 7, 13]), Recipe(0.01, epochs=2, batch_size=2)
    ours = PooledNetwork("mean_pooling", SHAPE, vectors, seed=1)
    plain = {name: torch.nn.Parameter(tensor.clone()) for name, tensor in ours.parameters.items()}
    means = reviews.means(vectors.numpy())
    train(ours, Pooled(means, reviews.labels), recipe, seed=2)
    optimizer = torch.optim.Adam(plain.values(), lr=0.01)
    for epoch in range(2):
        for chosen in epoch_batches(5, recipe, 2, epoch):
            hidden = torch.relu(torch.tensor(means[chosen]) @ plain["first"] + plain["bias"])
            logits = hidden @ plain["decoder"] + plain["decoder_bias"]
            optimizer.zero_grad()
            plain_loss(logits, reviews.take(chosen)).backward()
            optimizer.step()
    for name, expected in plain.items():
        torch.testing.assert_close(ours.parameters[name], expected.detach(), rtol=1e-9, atol=1e-12)


def test_both_networks_of_a_seed_start_with_the_same_layers(vectors):
    one, other = (ReviewNetwork(n, SHAPE, vectors, seed=3) for n in ("baseline", "self_attention"))
    assert torch.equal(one.parameters["first"], other.parameters["first"])
    assert torch.equal(one.parameters["decoder"], other.parameters["decoder"])
    assert one.parameters["first"].abs().max() <= (P * T) ** -0.5


def test_a_loss_that_is_not_finite_names_network_epoch_and_step_size(vectors):
    network = ReviewNetwork("baseline", SHAPE, vectors, seed=1)
    network.parameters["decoder_bias"].fill_(float("nan"))
    with pytest.raises(FloatingPointError, match=r"baseline, seed 2, 2 reviews: loss nan in epoch 1, step size 0.5"):
        train(network, draw_reviews([3, 19]), Recipe(0.5, 1), seed=2)
    control = PooledNetwork("mean_pooling", SHAPE, vectors, seed=1)
    control.parameters["decoder_bias"].fill_(float("nan"))
    with pytest.raises(FloatingPointError, match="mean_pooling, seed 2, 2 reviews: loss nan in epoch 1"):
        train(control, Pooled(np.zeros((2, T)), np.zeros(2)), Recipe(0.5, 1), seed=2)


def test_with_queries_of_zero_words_have_the_attention_of_their_share_of_the_positions(vectors):
    ours = ReviewNetwork("self_attention", SHAPE, vectors, seed=1)
    ours.parameters["query"].zero_()
    assert ours.mass_on_words(draw_reviews([3, 77, 11])) == pytest.approx(np.mean([3, 77, 11]) / P)


def test_controls_see_the_mean_of_the_words_or_their_sum_over_all_positions(vectors):
    reviews = draw_reviews([3, 0])
    total = vectors.numpy()[reviews.words(0)].sum(0)
    for network, over in (("mean_pooling", 3), ("uniform_attention", P)):
        found = Pooled.of(reviews, vectors.numpy(), network, P)
        np.testing.assert_allclose(found.vectors, [total / over, 0 * total], atol=1e-15)
        np.testing.assert_array_equal(found.labels, reviews.labels)


def test_groups_cover_all_reviews_once_and_in_order():
    lengths = np.sort(np.random.default_rng(0).integers(0, 2142, 97))[::-1]
    groups = list(groups_of_similar_length(lengths))
    assert [g.start for g in groups[1:]] == [g.stop for g in groups[:-1]]
    assert (groups[0].start, groups[-1].stop) == (0, 97)


def test_an_epoch_sees_every_review_once():
    seen = np.concatenate(epoch_batches(23, Recipe(0.1, 1, 5), seed=0, epoch=0))
    assert sorted(seen) == list(range(23))


def test_bad_arguments_are_refused_by_name(vectors):
    with pytest.raises(ValueError, match="vectors: expected 5 entries and a row 0 of zeros"):
        ReviewNetwork("baseline", SHAPE, vectors + 1, seed=0)
    with pytest.raises(ValueError, match=f"reviews: expected at most {P} words"):
        ReviewNetwork("baseline", SHAPE, vectors, seed=0).step(draw_reviews([1, P + 1]), np.arange(2))
    with pytest.raises(ValueError, match="the longest first"):
        ReviewNetwork("baseline", SHAPE, vectors, seed=0).answer({}, draw_reviews([1, 2]), np.arange(2))
    with pytest.raises(ValueError, match="network"):
        PooledNetwork("baseline", SHAPE, vectors, seed=0)
    with pytest.raises(ValueError, match="width: expected at least 1, got 0"):
        ReviewShape(1, 1, 0)
    with pytest.raises(ValueError, match="step_size"):
        Recipe(0.0, 1)
    with pytest.raises(ValueError, match="epochs"):
        Recipe(0.1, 0)


def test_reviews_become_ids_in_order_without_unknown_words_and_cut():
    encoded = encode([["b", "?", "a", "b"], [], ["a"]], [1, 0, 1], {"a": 1, "b": 2}, n_positions=2)
    assert encoded.ids.tolist() == [2, 1, 1]
    assert encoded.lengths.tolist() == [2, 0, 1]
    assert encoded.padded(np.array([0, 1])).tolist() == [[2, 1], [0, 0]]
    assert encoded.take(np.array([2, 0])).ids.tolist() == [1, 2, 1]
    assert encoded.longest_first(np.array([1, 2, 0])).tolist() == [0, 2, 1]
    assert encoded.means(np.array([[0.0], [2.0], [4.0]])).tolist() == [[3.0], [0.0], [2.0]]


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
