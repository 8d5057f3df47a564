"""Webhooks of apps: their changes, the state of receivers, test events, and events that are sent again."""
