"""The host of URLs at which a listener of this machine is reached."""

_LOOPBACK_OF_WILDCARD = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104


def url_host(host: str) -> str:
    """Return the host of a URL to a listener on `host`: loopback for a wildcard, and an IPv6 address in brackets."""
    reached = _LOOPBACK_OF_WILDCARD.get(host, host)
    return f"[{reached}]" if ":" in reached else reached
