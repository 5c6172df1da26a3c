"""What a store's folder must hold at least: noted with each acknowledged write, compared before the engine opens it."""
