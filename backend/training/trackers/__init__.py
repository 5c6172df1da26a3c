"""The metrics of a run in other programs that show them: Weights & Biases, MLflow."""
