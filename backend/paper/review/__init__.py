"""What is made of a session afterwards: data for the next training, and how it compares with what was expected."""
