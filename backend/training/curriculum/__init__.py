"""Which states are trained on, and in which stage."""
