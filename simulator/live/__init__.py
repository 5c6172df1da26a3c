"""Live market data: what a session sees of an exchange, and exchanges to test with."""
