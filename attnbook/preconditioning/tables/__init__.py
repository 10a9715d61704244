"""The tables of this part, one module per chapter; Theorem 1 has its own."""
