"""The chapter on learning features: its experiment, pictures, tables and exercises."""
