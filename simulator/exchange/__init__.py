"""One simulated account: orders, fills and other records, trading costs."""
