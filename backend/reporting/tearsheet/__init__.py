"""The parts of a tearsheet that say how returns came: drawdowns one by one, and the distribution of days."""
