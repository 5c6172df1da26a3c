"""A second team beside the one that trades: the same bars, an account of its own, orders that go nowhere."""
