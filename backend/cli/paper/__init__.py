"""`cryptosentinel paper`."""
