"""The stored document of a decision."""
