"""The chapter on generalisation."""
