"""The hard limits of orders: plain code that no model can get around."""
