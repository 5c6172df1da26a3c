"""Checks of a strategy for look-ahead and for dependence on how much history it is given."""
