"""What runs the team: store, backtest runs, M-GRPO training, evaluation and the command line."""
