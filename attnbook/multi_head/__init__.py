"""On the Optimization and Generalization of Multi-head Attention: data, models, formulas and experiments."""
