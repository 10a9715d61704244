"""Optimizing Attention with Mirror Descent: data, models, theory and experiments."""
