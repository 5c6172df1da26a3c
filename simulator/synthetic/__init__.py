"""The generated market, its hidden regimes, and what could be earned by who knew them."""
