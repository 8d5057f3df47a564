"""The installation that a command works on: this machine's, or another one by its console's calls."""
