"""How fast the direction settles, and what the cone is for."""
