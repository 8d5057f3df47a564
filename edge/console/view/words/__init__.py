"""Texts of actions, of details and reasons in audits, and of audiences and their filters, in the reader's language."""
