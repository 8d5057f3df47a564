"""Webhooks of apps: their changes, how receivers do, test events, and events that are sent again."""
