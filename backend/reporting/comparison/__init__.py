"""Several runs: as rows of a table, and side by side."""
