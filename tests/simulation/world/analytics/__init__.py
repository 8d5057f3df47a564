"""Analytics in a world: its ingestion on a model of its store, and what the store must hold in the end."""
