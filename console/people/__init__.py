"""Users, teams, members and API tokens, and changes that a second administrator confirms."""
