"""*Optimizing Attention with Mirror Descent*: the optimiser chooses the geometry of attention."""

from attnbook.mirror_descent.joint_law import joint_directions

__all__ = ["joint_directions"]
