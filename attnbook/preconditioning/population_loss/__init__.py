"""What softmax attention computes for Gaussian inputs, and the loss that follows: its minima and Theorem 1."""
