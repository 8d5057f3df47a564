"""The JavaScript SDK in a real browser with the real gateway."""

import asyncio
import json
import threading
from collections.abc import AsyncIterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from protos.push.v1.push_pb2 import Message
from testkit.gateway.role import ANDROID, RunningGateway
from testkit.programs import BROWSERS, needed
from testkit.repository import ROOT

FILES = {
    "/": (Path(__file__).parent / "page.html", "text/html"),
    "/carillon-device.js": (ROOT / "sdk" / "carillon-device.js", "text/javascript"),
}
BOUND_S = 60.0


class Site:
    """Serves the page; `reports` receives what the page posts."""

    def __init__(self) -> None:
        self.reports: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        loop, reports = asyncio.get_running_loop(), self.reports

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                path, kind = FILES.get(self.path.partition("?")[0], (None, "text/plain"))
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


@pytest.fixture
def chromium() -> str:
    return needed(*BROWSERS)


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    site = Site()
    yield site
    await asyncio.to_thread(site.close)


@pytest.fixture
async def browser(chromium: str, real_gateway: RunningGateway, site: Site, tmp_path: Path) -> AsyncIterator[None]:
    page = f"{site.url}?url=ws://127.0.0.1:{real_gateway.port}/device/v1&appkey={ANDROID}"
    options = ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run")
    process = await asyncio.create_subprocess_exec(
        chromium, *options, f"--user-data-dir={tmp_path / 'profile'}", page,
        stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    yield
    process.terminate()
    await process.wait()


async def test_a_page_is_the_same_device_after_a_reload(
    browser: None, real_gateway: RunningGateway, site: Site
) -> None:
    welcome = (await site.next("event"))["token"]
    assert (await site.next("device"))["alias"] == "browser"
    (connection,) = await real_gateway.delivery.until(real_gateway.delivery.connections)
    real_gateway.delivery.send(Message(content="hello"), [connection], [1])
    real_gateway.delivery.send(Message(content="reload"), [connection], [2])
    assert [(await site.next("push"))["content"] for _ in range(2)] == ["hello", "reload"]
    await real_gateway.delivery.until(
        lambda: sorted(row[1:] for row in real_gateway.delivery.reports()) == [(1, 2), (2, 2)]
    )
    again = await site.next("event")
    assert (again["token"], again["new"]) == (welcome, False)
    await site.next("device")
    connection = (await real_gateway.delivery.until(lambda: real_gateway.delivery.connections()[1:]))[0]
    real_gateway.delivery.send(Message(content="hello"), [connection], [1])
    real_gateway.delivery.send(Message(content="another"), [connection], [3])
    assert (await site.next("push"))["content"] == "another"
    await real_gateway.delivery.until(lambda: sorted(row[1] for row in real_gateway.delivery.reports()) == [1, 1, 2, 3])
