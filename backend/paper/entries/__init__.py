"""What the entries of a journal are."""
