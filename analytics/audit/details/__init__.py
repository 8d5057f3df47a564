"""What the line about an entry of an audit says: its parts as typed facts, and their English text."""
