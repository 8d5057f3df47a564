"""Drafts: pushes that wait for a second person's approval, the decisions about them, and their sending."""
