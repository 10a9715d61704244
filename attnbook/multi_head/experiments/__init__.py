"""The experiments of this paper."""

from attnbook.core.results import Experiment

__all__ = ["EXPERIMENTS"]

EXPERIMENTS: tuple[Experiment, ...] = ()
