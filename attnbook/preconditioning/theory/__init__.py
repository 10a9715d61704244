"""The formulas and bounds of this paper, as plain functions, one module per chapter."""
