"""Analytics in a world: its ingestion on a model of its store, and the checks of that store's rows."""
