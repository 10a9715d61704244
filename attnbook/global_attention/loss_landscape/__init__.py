"""Flatter minima, fewer bends? Theorems 3, 4 and 5, and the Hessian where training ends."""
