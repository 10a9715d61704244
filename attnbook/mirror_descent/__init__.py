"""*Optimizing Attention with Mirror Descent*: the optimiser chooses the geometry of attention."""
