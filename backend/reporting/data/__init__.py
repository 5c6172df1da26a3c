"""What a folder of market data holds, drawn over time."""
