"""A `POST /device/v1` for tests of SDKs, which answers each frame of a device as the test orders."""

import asyncio
import json
import ssl
from typing import Any

BOUND_S = 60.0
KEY_PATH = "/device/v1/webpush-key"
Json = dict[str, Any]


class ScriptedRequest:
    """A frame that waits for the test's answer. A second answer has no effect."""

    def __init__(self, frame: Json, writer: asyncio.StreamWriter) -> None:
        self.frame = frame
        self._writer = writer

    def ok(self, **fields: Any) -> None:
        self.answer({"type": "ok", **fields})

    def refuse(self, code: int, desc: str = "no", *, retry_after_s: int | None = None, **fields: Any) -> None:
        """Answer with an error, under the HTTP status that the service gives it."""
        headers = {} if retry_after_s is None else {"Retry-After": str(retry_after_s)}
        status = code if code in (403, 429, 503) else 200
        self.answer({"type": "error", "code": code, "desc": desc, **fields}, status, headers)

    def redirect(self, url: str) -> None:
        """Send the device elsewhere, in the way that repeats the body there."""
        self._write(307, b"", {"Location": url})

    def answer(self, frame: Json | str, status: int = 200, headers: dict[str, str] | None = None) -> None:
        """Answer with a frame, or with a text that is none."""
        text = frame if isinstance(frame, str) else json.dumps(frame)
        self._write(status, text.encode(), headers or {})

    def drop(self) -> None:
        """Close the connection without an answer."""
        self._writer.close()

    def _write(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        lines = [f"HTTP/1.1 {status} Scripted", f"Content-Length: {len(body)}", "Connection: close"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        self._writer.write("\r\n".join([*lines, "", ""]).encode() + body)
        self._writer.close()


class ScriptedEndpoint:
    """Takes frames between `open` and `close`; `requests` holds those that the test has not fetched yet.

    It answers requests for the app's Web Push key by itself.
    """

    def __init__(self, context: ssl.SSLContext | None = None) -> None:
        self.url = ""
        self.requests: asyncio.Queue[ScriptedRequest] = asyncio.Queue()
        self._context = context
        self._server: asyncio.Server | None = None
        self._writers: list[asyncio.StreamWriter] = []

    async def open(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self._context)
        port = self._server.sockets[0].getsockname()[1]
        self.url = f"{'https' if self._context else 'http'}://127.0.0.1:{port}/device/v1"

    async def close(self) -> None:
        assert self._server is not None
        self._server.close()
        for writer in self._writers:
            writer.close()
        await self._server.wait_closed()

    async def next(self, kind: str) -> ScriptedRequest:
        """Return the next frame, which must be of this type."""
        async with asyncio.timeout(BOUND_S):
            request = await self.requests.get()
        assert request.frame["type"] == kind, request.frame
        return request

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.append(writer)
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            method, path, _ = head.split("\r\n", 1)[0].split(" ")
            headers = {
                name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head.splitlines())
            }
            body = await reader.readexactly(int(headers.get("content-length", 0)))
        except asyncio.IncompleteReadError:
            writer.close()
            return
        if method == "GET" and path.partition("?")[0] == KEY_PATH:
            ScriptedRequest({}, writer).answer({"result": 0, "key": "B" * 87})
            return
        assert (method, path) == ("POST", "/device/v1"), head
        self.requests.put_nowait(ScriptedRequest(json.loads(body), writer))
