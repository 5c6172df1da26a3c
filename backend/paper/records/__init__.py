"""Stored sessions: what the store has of one, and the teams that trade in it."""
