"""The chapter on the geometry that the optimiser chooses: its experiments, pictures, tables and exercises."""
