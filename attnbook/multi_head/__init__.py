"""On the Optimization and Generalization of Multi-head Attention: data, models, formulas and experiments."""

from attnbook.multi_head.certificate import certify

__all__ = ["certify"]
