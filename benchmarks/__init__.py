"""Benchmarks of the project; `run.py` runs them."""
