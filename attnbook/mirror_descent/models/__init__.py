"""The networks of this paper and how they are trained: one module per idea."""
