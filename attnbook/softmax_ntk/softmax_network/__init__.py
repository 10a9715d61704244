"""The chapter on the softmax network: its experiments, pictures, tables and exercises."""
