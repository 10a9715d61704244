"""The chapter on training bounds: its experiments, pictures, tables and exercises."""
