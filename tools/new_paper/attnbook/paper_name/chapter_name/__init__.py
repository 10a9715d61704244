"""One line that says what this chapter is about."""
