"""*Exploring the Frontiers of Softmax*: two-layer networks with a softmax over their neurons, and their kernels."""
