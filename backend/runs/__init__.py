"""Use cases: one frozen request in, one outcome out. Command line, pages and the Python API call them."""
