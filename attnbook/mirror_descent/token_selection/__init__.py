"""The chapter on token selection: its experiments, pictures, tables and exercises."""
