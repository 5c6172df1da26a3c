"""A stored decision again, with something of it changed."""
