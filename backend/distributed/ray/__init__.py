"""The same workers and trainers as actors on a Ray cluster."""
