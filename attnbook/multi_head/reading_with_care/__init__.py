"""The page of places to read with care: its slider and its exercise."""
