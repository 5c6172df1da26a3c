"""M-GRPO: pure formulas, the policies they train, and the trainers of single roles."""
