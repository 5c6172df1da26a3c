"""Models behind endpoints of the OpenAI kind: providers, messages, refusals, HTTP with its limits, the engine."""
