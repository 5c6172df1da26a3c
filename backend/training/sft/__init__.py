"""Supervised fine-tuning: data sets, losses, scores, and the warm start of nano."""
