"""A window of history played bar by bar, and the statistics of what came out."""
