"""Devices found by token or alias, their history, and why a push reached them or not."""
