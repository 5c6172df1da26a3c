"""Stores of the former engine, SurrealDB 2: how they are converted."""
