"""The tools: numbers made by code from what was known at the clock."""
