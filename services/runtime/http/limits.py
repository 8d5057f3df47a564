"""The limits of HTTP connections."""

import msgspec

from services.runtime.process.settings import Settings
from services.runtime.sockets.open_files import file_shares, hard_file_limit

_SHARE_OF_ONE_ADDRESS = 4
_MAX_PAGES = 256


class HttpLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of HTTP connections; durations in milliseconds.

    `connections` may be open in all, `per_address` from one address. `head_bytes` and `headers` bound the request line
    and the headers, together with any trailers; `pipelined` the requests that wait for the answer to an earlier one.
    `head_ms` is the time for a whole head, `idle_ms` the time between two requests, and `closing_ms` the time for
    the end of a connection. `half_closed_ms` is the time for the answers to a client that has ended its sending
    direction. While an answer waits to be sent, the client must read `write_bytes` in `write_ms`.
    `spare_files` are kept open for the case that the process has no other file for a new connection.
    """

    connections: int = 1024
    per_address: int = 256
    head_bytes: int = 16 * 1024
    headers: int = 100
    pipelined: int = 100
    head_ms: int = 8_000
    idle_ms: int = 75_000
    write_ms: int = 20_000
    write_bytes: int = 32 * 1024
    closing_ms: int = 3_000
    half_closed_ms: int = 30_000
    spare_files: int = 0


OPERATIONS_LIMITS = HttpLimits(connections=64, per_address=16, spare_files=4)
"""The operations endpoint has connections of its own, which app servers and devices cannot take."""


def pages_limits(open_files: int) -> HttpLimits:
    """Return the limits where the console serves pages to browsers, each of which keeps several connections.

    They take at most half of the open files that are reserved for the process itself.
    """
    connections = max(OPERATIONS_LIMITS.connections, min(_MAX_PAGES, file_shares(open_files).reserved // 2))
    return HttpLimits(connections=connections, per_address=connections // 2, spare_files=OPERATIONS_LIMITS.spare_files)


def api_limits(settings: Settings) -> HttpLimits:
    """Return the limits of app servers' connections: those set, or what the limit of open files allows."""
    connections = file_shares(hard_file_limit(), settings.http_max_connections).http
    per_address = settings.http_connections_per_address or max(1, connections // _SHARE_OF_ONE_ADDRESS)
    return HttpLimits(connections=connections, per_address=per_address)
