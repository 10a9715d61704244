"""The implicit bias of gradient descent on separable data, a miniature: one library module, one chapter."""
