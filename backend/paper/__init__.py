"""Paper sessions: the team on a feed that goes on, with a journal from which it goes on after any end."""
