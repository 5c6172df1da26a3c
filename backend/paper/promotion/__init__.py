"""How another team takes the place of the one that trades."""
