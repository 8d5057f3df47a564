"""Clients for plain HTTP. They load no certificates of authorities, which takes httpx 40 ms of CPU time a client."""

import ssl
from typing import Any

import httpx


def async_client(**options: Any) -> httpx.AsyncClient:
    """Return an httpx.AsyncClient with these options; it refuses every https server."""
    return httpx.AsyncClient(verify=ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), **options)


def client(**options: Any) -> httpx.Client:
    """Return an httpx.Client with these options; it refuses every https server."""
    return httpx.Client(verify=ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), **options)
