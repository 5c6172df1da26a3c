"""The chat format of any model, by the Jinja template of its tokenizer."""
