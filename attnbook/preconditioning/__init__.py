"""Training Dynamics of Softmax Self-Attention: data, models, theory and experiments."""
