"""The line about an entry of an audit: its parts as typed details, and their English text."""
