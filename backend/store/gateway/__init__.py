"""How one process lets others use the store that it holds: the shared engine, the WebSocket server, its address."""
