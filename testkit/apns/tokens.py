"""Tokens of iOS devices for tests."""

import hashlib


def ios_token(name: str) -> str:
    """Return a token in Apple's form, always the same for the name."""
    return hashlib.sha256(name.encode()).hexdigest()
