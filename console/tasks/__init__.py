"""Timed pushes that wait, and their cancel."""
