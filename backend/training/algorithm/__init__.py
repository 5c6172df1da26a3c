"""M-GRPO (arXiv 2511.13288), pure: rewards, alignment, advantages, credit, objective."""
