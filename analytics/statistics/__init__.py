"""Answers to questions for numbers: broadcasts, log-ins, connections, registrations."""
