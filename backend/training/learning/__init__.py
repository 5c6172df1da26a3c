"""One role's optimiser step."""
