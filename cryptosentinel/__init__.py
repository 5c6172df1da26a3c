"""The team: its roles, what they see (tools), say (protocol) and think with (LLM engines), and the hard guard."""
