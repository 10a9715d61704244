"""How attention and softmax learn: the models, theory and experiments behind the book.

Importing this package loads neither torch nor NumPy: what needs them loads them. Each paper has a room
(``attnbook.global_attention``, ...) with the same four doors: ``data``, ``models``, ``theory``
and ``experiments``; beside them lie its figures and the checks of its exercises.
"""

from attnbook.exercises import check

__version__ = "0.1.0"

__all__ = ["__version__", "check"]
