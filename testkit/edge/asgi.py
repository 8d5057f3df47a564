"""Requests to an ASGI application, made without a socket."""

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

from edge.core.parsing.body import Application

Headers = Sequence[tuple[bytes, bytes]]


class AsgiAnswer(NamedTuple):
    """An application's answer, complete."""

    status: int
    headers: Headers
    body: bytes


class AsgiRequest:
    """One request; `path` may have a query.

    `pieces`: the parts in which the body arrives, without a Content-Length; by default it arrives whole. `is_cut`: the
    client leaves instead of sending the end of the last piece.
    """

    def __init__(
        self,
        method: str,
        path: str,
        headers: Headers,
        body: bytes,
        server_port: int = 80,
        *,
        pieces: Sequence[bytes] | None = None,
        is_cut: bool = False,
    ) -> None:
        length = [(b"content-length", str(len(body)).encode())] if pieces is None else []
        *first, last = pieces or [body]
        path, _, query = path.partition("?")
        self._scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "query_string": query.encode(),
            "root_path": "",
            "headers": [*headers, *length],
            "client": ("127.0.0.1", 50_000),
            "server": ("127.0.0.1", server_port),
        }
        self._received: deque[dict[str, Any]] = deque(_part(piece, more_body=True) for piece in first)
        if is_cut:
            self._received += [_part(last[: len(last) // 2], more_body=True), {"type": "http.disconnect"}]
        else:
            self._received.append(_part(last, more_body=False))
        self._sent: list[dict[str, Any]] = []
        self._has_left = asyncio.Event()

    def leave(self) -> None:
        """Close the client's connection: nobody reads the answer any more."""
        self._has_left.set()

    async def answer(self, application: Application) -> AsgiAnswer | None:
        """Return the answer; None when the application sent none. Raises what the application raises."""
        try:
            await application(self._scope, self._receive, self._send)
        finally:
            self.leave()
        if not self._sent:
            return None
        start, *parts = self._sent
        return AsgiAnswer(start["status"], start["headers"], b"".join(part.get("body", b"") for part in parts))

    async def _receive(self) -> dict[str, Any]:
        if self._received:
            return self._received.popleft()
        await self._has_left.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: dict[str, Any]) -> None:
        self._sent.append(message)


def _part(body: bytes, *, more_body: bool) -> dict[str, Any]:
    return {"type": "http.request", "body": body, "more_body": more_body}
