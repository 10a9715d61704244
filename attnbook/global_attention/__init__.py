"""*Understanding Attention Mechanisms*: one attention mask for all samples, and what it saves."""

from attnbook.global_attention.comparison import Comparison, compare

__all__ = ["Comparison", "compare"]
