"""Replace this: what the paper is about. Its library stands here, beside it a folder for each chapter."""
