"""From a configuration to things: market, venue, engine, team, strategy."""
