"""The chapter on the number of heads: its experiments, pictures, tables and exercises."""
