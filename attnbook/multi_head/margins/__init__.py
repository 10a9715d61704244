"""The chapter on what can be separated: its experiments, pictures, tables and exercises."""
