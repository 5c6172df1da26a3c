"""Models on disk: list, check, pull, export, and the manifest of a team's folder."""
