"""A team's models for other programs: PEFT folders, merged models, GGUF files, Ollama's Modelfiles."""
