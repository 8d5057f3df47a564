"""The simulated event log: a broker, and the Log port on it."""
