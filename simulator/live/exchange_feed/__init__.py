"""A feed of live data from any exchange that ccxt knows: its WebSocket first, its REST to fill what is missing."""
