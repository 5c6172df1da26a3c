"""What the metrics of a training run say is wrong with it."""
