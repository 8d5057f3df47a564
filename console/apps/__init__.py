"""Apps: the list, settings, secrets, pauses, and the virtual phone."""
