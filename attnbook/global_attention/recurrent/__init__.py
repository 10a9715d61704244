"""Recurrent attention: too simple, too complex, a second look, and the paper's guidelines as curves."""
