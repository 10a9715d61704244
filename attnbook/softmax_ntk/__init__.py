"""Exploring the Frontiers of Softmax: data, models, theory and experiments."""
