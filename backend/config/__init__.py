"""The settings of a run: their types, bounds and meaning, and how they are loaded."""
