"""The chapter on one good step: its experiments, pictures, tables and exercises."""
