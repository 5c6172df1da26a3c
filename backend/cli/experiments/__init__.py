"""The commands of experiments and of the search."""
