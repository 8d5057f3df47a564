"""The installation that a command works on: that of this machine, or another one by calls of its console."""
