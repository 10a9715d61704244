"""The chapter on real text and images: its experiments, pictures, tables and exercises."""
