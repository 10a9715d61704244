"""Chapter on noisy digits: Figures 2, 4, 5 and 6, and penalties in place of a mask."""
