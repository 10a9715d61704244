"""The chapter on the margin that gradient descent reaches: its experiments, pictures, tables and exercises."""
