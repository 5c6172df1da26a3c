"""What every search shares: which sets are tried next, and the folder from which a killed search goes on."""
