"""The agents: one file a role."""
