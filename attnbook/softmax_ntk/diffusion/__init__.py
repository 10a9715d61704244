"""The chapter on score estimation: its experiments, pictures, tables and exercises."""
