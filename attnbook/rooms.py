"""The rooms of the book: one package per paper."""

__all__ = ["ROOMS"]

ROOMS = {
    "GA": "attnbook.global_attention",
    "MH": "attnbook.multi_head",
    "MD": "attnbook.mirror_descent",
    "SN": "attnbook.softmax_ntk",
    "PC": "attnbook.preconditioning",
}
"""Prefix of claims and exercises to the package of the paper, in the order of the book."""
