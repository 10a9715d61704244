"""The pictures of this part, one module per chapter. Each function takes a result and computes nothing but medians."""
