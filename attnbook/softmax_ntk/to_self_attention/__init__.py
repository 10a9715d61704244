"""The chapter on self-attention: its experiments, pictures, tables and exercises."""
