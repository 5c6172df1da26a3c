"""The market: data, exchange, accounts, baselines, metrics. Knows no LLM and no database."""
