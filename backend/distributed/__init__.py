"""A training whose rollout workers and trainers are actors on a Ray cluster."""
