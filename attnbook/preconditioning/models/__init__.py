"""The networks of this paper and how they are trained."""
