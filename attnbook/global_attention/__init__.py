"""Understanding attention mechanisms: masks, self-attention and recurrent attention on data of known teachers."""
