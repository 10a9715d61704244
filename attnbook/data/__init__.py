"""The data sets of the papers: from a folder of yours, a cache, a download, or an embedded stand-in, in this order.

Every loader says in ``source`` which it was. Importing this package loads torch and NumPy only, and touches no data and
no network. See :mod:`attnbook.data.files` for the places and the checksums.
"""

from attnbook.data.files import DOWNLOADS, Entry, available, data_folder, fetch, offline
from attnbook.data.images import Images, cifar10, digits, mnist
from attnbook.data.labelled import LabelledReviews, Source, labelled_reviews
from attnbook.data.reading import DataError
from attnbook.data.reviews import Reviews, imdb, tokenise
from attnbook.data.word_vectors import Embeddings, embeddings, store_embeddings, train_embeddings

__all__ = [
    "DOWNLOADS",
    "DataError",
    "Embeddings",
    "Entry",
    "Images",
    "LabelledReviews",
    "Reviews",
    "Source",
    "available",
    "cifar10",
    "data_folder",
    "digits",
    "embeddings",
    "fetch",
    "imdb",
    "labelled_reviews",
    "mnist",
    "offline",
    "store_embeddings",
    "tokenise",
    "train_embeddings",
]
