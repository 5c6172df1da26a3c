"""Market data in files: reading, writing, import and download."""
