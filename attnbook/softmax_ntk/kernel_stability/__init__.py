"""The chapter on the stability of the kernel: its experiments, pictures, tables and exercises."""
