"""Training apart: rollout workers and role trainers in processes that share records through the store."""
