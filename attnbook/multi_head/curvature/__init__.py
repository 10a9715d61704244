"""How far from convex is the loss, and what do more heads change? Lemma 1, Proposition 1, Corollary 1."""
