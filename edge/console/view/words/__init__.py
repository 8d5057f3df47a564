"""Texts of actions, of recorded details, and of filters, in the reader's language."""
