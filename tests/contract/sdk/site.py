"""A web site of one test, whose page posts what it has done."""

import asyncio
import json
import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

BOUND_S = 60.0


class Site:
    """Serves files by their paths, with their media types; `reports` receives what the page posts."""

    def __init__(self, files: Mapping[str, tuple[Path, str]]) -> None:
        self.reports: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        loop, reports = asyncio.get_running_loop(), self.reports

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                path, kind = files.get(self.path.partition("?")[0], (None, "text/plain"))
                self._answer(200 if path else 404, path.read_bytes() if path else b"", kind)

            def do_POST(self) -> None:
                text = self.rfile.read(int(self.headers["Content-Length"]))
                loop.call_soon_threadsafe(reports.put_nowait, json.loads(text))
                self._answer(200, b"", "text/plain")

            def _answer(self, status: int, content: bytes, kind: str) -> None:
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, format: str, *arguments: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    async def next(self, kind: str) -> Any:
        async with asyncio.timeout(BOUND_S):
            report = await self.reports.get()
        assert list(report) == [kind], report
        return report[kind]

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
