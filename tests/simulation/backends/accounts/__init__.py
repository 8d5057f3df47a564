"""Users, teams and drafts in worlds of roles."""
