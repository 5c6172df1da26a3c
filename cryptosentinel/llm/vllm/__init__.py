"""vLLM servers: one base model and an adapter for each role, swapped while they run."""
