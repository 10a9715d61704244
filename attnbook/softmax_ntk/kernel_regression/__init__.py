"""The chapter on kernel regression: its experiment, pictures, tables and exercises."""
