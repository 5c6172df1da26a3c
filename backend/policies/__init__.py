"""The weights of the roles: LoRA adapters, log-probabilities, files, and their transfer to an engine."""
