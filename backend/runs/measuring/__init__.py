"""Measurements of a run, cut into pieces of work that several processes share."""
