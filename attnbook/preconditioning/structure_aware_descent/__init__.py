"""What makes attention train? Algorithm 1, its parts left out in turn, and its rivals."""
