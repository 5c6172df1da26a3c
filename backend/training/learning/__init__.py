"""One role's optimizer step."""
