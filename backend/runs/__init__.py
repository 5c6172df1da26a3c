"""The use cases: one request in, one run out. Command line, page and Python API call these."""
