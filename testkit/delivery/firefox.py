"""Commands to a running Firefox: it opens pages and runs scripts in them, by WebDriver BiDi over a WebSocket.

https://www.w3.org/TR/webdriver-bidi/
"""

import asyncio
import itertools
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from picows import WSError, WSFrame, WSListener, WSMsgType, WSTransport, ws_connect

from testkit.waiting import until

_START_S, _ANSWER_S = 120, 120


class _Connection(WSListener):
    """Commands and their answers, by number; answers may come in pieces."""

    def __init__(self) -> None:
        self.answers: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._received = b""

    def on_ws_connected(self, transport: WSTransport) -> None:
        self.transport = transport

    def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
        self._received += frame.get_payload_as_bytes()
        if not frame.fin:
            return
        answer, self._received = json.loads(self._received), b""
        if (waiting := self.answers.pop(answer.get("id"), None)) is not None:
            waiting.set_result(answer)


class FirefoxTabs:
    """Opens and closes tabs, and evaluates scripts in them."""

    def __init__(self, connection: _Connection) -> None:
        self._connection = connection
        self._numbers = itertools.count(1)

    async def command(self, method: str, **params: Any) -> dict[str, Any]:
        number = next(self._numbers)
        self._connection.answers[number] = asyncio.get_running_loop().create_future()
        command = json.dumps({"id": number, "method": method, "params": params})
        self._connection.transport.send(WSMsgType.TEXT, command.encode())
        answer = await asyncio.wait_for(self._connection.answers[number], _ANSWER_S)
        assert answer["type"] == "success", answer
        result: dict[str, Any] = answer["result"]
        return result

    async def open(self, url: str) -> str:
        """Open a tab with this page; return the tab's name once the page has loaded."""
        tab = str((await self.command("browsingContext.create", type="tab"))["context"])
        await self.command("browsingContext.navigate", context=tab, url=url, wait="complete")
        return tab

    async def close(self, tab: str) -> None:
        await self.command("browsingContext.close", context=tab)

    async def evaluate(self, tab: str, script: str) -> Any:
        """Return the value of an expression in the tab's page: a text, a number, a truth value or null."""
        target = {"context": tab}
        answer = await self.command("script.evaluate", expression=script, target=target, awaitPromise=True)
        assert answer["type"] == "success", answer
        return answer["result"].get("value")

    async def until(self, tab: str, script: str) -> None:
        """Wait until the expression holds in the tab's page, which may change. AssertionError with what it shows."""

        async def holds() -> Any:
            try:
                return await self.evaluate(tab, script)
            except AssertionError:
                return None

        try:
            await until(holds, _ANSWER_S)
        except TimeoutError:
            shown = await self.evaluate(tab, "location.href + document.body.innerText.slice(0, 2000)")
            raise AssertionError(f"{script} does not hold: {shown}") from None


@asynccontextmanager
async def firefox_tabs(port: int) -> AsyncIterator[FirefoxTabs]:
    """Connect to the Firefox that was started with this port for commands."""

    async def connected() -> _Connection | None:
        try:
            _, listener = await ws_connect(_Connection, f"ws://127.0.0.1:{port}/session")
        except (OSError, WSError):
            return None
        assert isinstance(listener, _Connection)
        return listener

    connection = await until(connected, _START_S)
    tabs = FirefoxTabs(connection)
    await tabs.command("session.new", capabilities={})
    yield tabs
    connection.transport.disconnect()
