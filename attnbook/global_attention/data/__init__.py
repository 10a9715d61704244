"""Data of this paper: labels made by known networks, and reviews."""

from attnbook.global_attention.data.masked_teachers import Setup, Teacher, draw_teacher, relu_covariance

__all__ = ["Setup", "Teacher", "draw_teacher", "relu_covariance"]
