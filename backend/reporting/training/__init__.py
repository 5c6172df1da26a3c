"""What a training's records say: its curves over the steps, and one group of rollouts side by side."""
