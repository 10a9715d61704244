"""The tables of this part, one module per chapter."""
