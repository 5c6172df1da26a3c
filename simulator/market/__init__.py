"""Market history on one time grid, and the point-in-time view of it at the close of a bar."""
