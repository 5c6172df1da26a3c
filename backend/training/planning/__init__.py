"""What a training would need: memory, floating point operations, a dry run of one step."""
