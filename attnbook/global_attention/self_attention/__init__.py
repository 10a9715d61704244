"""Is it the attention? Theorem 2 on samples of a teacher, and Table 2 on film reviews."""
