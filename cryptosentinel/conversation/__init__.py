"""The record of a conversation: what is said, what is masked, what it costs, what is remembered."""
