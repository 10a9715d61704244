"""The formulas of this paper as plain functions."""
