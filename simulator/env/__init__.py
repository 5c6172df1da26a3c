"""Gymnasium environments over the same kernel as the exchange."""
