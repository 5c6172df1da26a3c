"""What processes that use one store need besides its records: fences around their writes, and files."""
