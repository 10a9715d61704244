"""*Understanding Attention Mechanisms*: one attention mask for all samples, and what it saves."""
