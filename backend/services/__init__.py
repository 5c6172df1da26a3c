"""Training apart: rollout workers and one trainer a role as processes of their own, with a store between them."""
