"""Calls of another engine, recorded and replayed."""
