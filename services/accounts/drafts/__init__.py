"""Pushes that need a second person's approval: which ones, who decided, and their sending."""
