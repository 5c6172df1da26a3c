"""Honest measurement: held-out windows, baselines, paired differences with intervals."""
