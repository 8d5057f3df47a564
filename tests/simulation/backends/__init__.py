"""Worlds of registry, targeting, scheduling and delivery, several instances of each, without edges and gateways."""
