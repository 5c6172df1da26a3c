"""One simulated account: orders in, records out, and what trading costs."""
