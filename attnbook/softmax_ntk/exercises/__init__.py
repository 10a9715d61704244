"""Checks of the exercises of this part, one module per chapter."""

from attnbook.softmax_ntk.exercises import (
    diffusion,
    kernel_regression,
    kernel_stability,
    lazy_training,
    softmax_network,
    to_self_attention,
)

__all__ = ["CHECKS"]

CHECKS = {
    **diffusion.CHECKS,
    **kernel_regression.CHECKS,
    **kernel_stability.CHECKS,
    **lazy_training.CHECKS,
    **softmax_network.CHECKS,
    **to_self_attention.CHECKS,
}
"""Id of an exercise to its check."""
