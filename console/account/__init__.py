"""Log-in, log-out and the own account."""
