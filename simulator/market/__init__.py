"""Market history on one time grid, and what of it was known at the close of a bar."""
