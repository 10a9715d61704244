"""Replace this: what the paper is about. Here is its library; its chapters are in chapters/paper_name."""
