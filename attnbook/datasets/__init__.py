"""The data sets of the papers: from a folder of yours, a cache, a download, or an embedded stand-in, in this order.

Every loader says in ``source`` which it was. Importing this package loads torch and NumPy only, and touches no file and
no network. See :mod:`attnbook.datasets.files` for the places and the checksums.
"""

from attnbook.datasets.catalogue import DOWNLOADS, Entry, available, fetch
from attnbook.datasets.files import DataError, cache_folder, data_folder, offline
from attnbook.datasets.images import Images, cifar10, digits, mnist
from attnbook.datasets.labelled import LabelledReviews, Source, labelled_reviews
from attnbook.datasets.pretrained import embeddings
from attnbook.datasets.reviews import Reviews, imdb, tokenise
from attnbook.datasets.training import train_embeddings
from attnbook.datasets.word_vectors import Embeddings, store_embeddings

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
    "cache_folder",
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
