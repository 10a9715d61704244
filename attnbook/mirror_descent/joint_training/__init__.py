"""The chapter on joint training: its experiments, pictures, tables and exercises."""
