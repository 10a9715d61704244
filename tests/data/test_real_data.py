"""The real files, where a folder of them is named."""

import os

import numpy as np
import pytest

from attnbook.data import cifar10, embeddings, imdb, mnist, tokenise

FOLDER = os.environ.get("ATTNBOOK_DATA")
pytestmark = pytest.mark.skipif(not FOLDER, reason="ATTNBOOK_DATA names no folder with the real data")


@pytest.fixture(autouse=True)
def real(cache, monkeypatch):
    monkeypatch.setenv("ATTNBOOK_DATA", FOLDER)


def test_mnist():
    found = mnist(stand_in=False, download=False)
    assert (found.train.shape, found.test.shape) == ((60000, 28, 28), (10000, 28, 28))
    assert np.bincount(found.test_labels).tolist() == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
    assert found.train.mean() / 255 == pytest.approx(0.1307, abs=5e-5)


def test_cifar():
    found = cifar10(stand_in=False, download=False)
    assert found.test_labels[:10].tolist() == [3, 8, 8, 0, 6, 6, 1, 6, 3, 1]


def test_imdb():
    found = imdb(stand_in=False, download=False)
    for split in found.values():
        assert np.bincount(split.labels).tolist() == [12500, 12500]
    assert np.mean([len(text.split()) for text in found["train"].texts]) == pytest.approx(233.79, abs=0.01)
    assert len(set(found["train"].texts) & set(found["test"].texts)) == 123
    assert tokenise(found["train"].texts[12500])[:2] == ["bromwell", "high"]


@pytest.mark.parametrize("name", ["imdb_ppmi_svd_100d", "imdb_word2vec_100d"])
def test_vectors(name):
    found = embeddings(name, stand_in=False)
    assert "dull" in found.nearest("boring")
    assert found.vectors.shape == (30000, 100)
