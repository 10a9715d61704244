"""The chapter on the scaling law: its experiments, pictures, tables and exercises."""
