"""Anthropic's own API, through its SDK."""
