"""How many samples does a mask save: Theorem 1, Table 1, Figure 7."""
