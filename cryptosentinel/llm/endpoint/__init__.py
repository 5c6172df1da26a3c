"""What all engines before an endpoint share: its address and key, the exchange, what it refuses, how it answers."""
