"""Paper sessions: the team on a feed that continues, with a journal from which it continues after any end."""
