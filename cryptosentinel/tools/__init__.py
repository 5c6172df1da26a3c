"""The tools: numbers that code computes from what was known at the time of the decision."""
