"""Pushes that were sent: lists, one push with its funnel, and the same for programs."""
