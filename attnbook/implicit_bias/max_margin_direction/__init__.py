"""Where logistic regression goes when nothing stops it: in the direction of the largest margin."""
