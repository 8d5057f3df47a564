"""A device of the fuzzer: it sends frames over one connection, and opens another when the gateway ends it."""

import asyncio
import itertools
import json
from collections import Counter

from testkit.gateway.websocket import CLOSE, TEXT, RawClient, frame
from tests.soak.fuzz.cases import Names, WireFrames, pieces
from tests.soak.fuzz.service import FuzzedService

_MARKER = 2**52
_PUSH = b'{"type":"push"'


class FuzzedDevice:
    """A device of one organisation. `results` counts the answers to its frames."""

    def __init__(self, service: FuzzedService, names: Names, results: Counter[str]) -> None:
        self._port = service.ports["gateway"]
        self._names = names
        self._results = results
        self._connection: RawClient | None = None
        self._credentials: dict[str, str] = {}
        self._markers = itertools.count(_MARKER)

    async def problem(self, frames: WireFrames) -> str | None:
        """Send frames; return the problem with the answers, or None."""
        if not frames.welcomed:
            connection = await RawClient.connect(self._port)
            try:
                return await self._problem(connection, frames)
            finally:
                connection.abort()
        if self._connection is None or self._connection.is_closing:
            self._connection = await self._welcomed()
        return await self._problem(self._connection, frames)

    def disconnect(self) -> None:
        if self._connection is not None:
            self._connection.abort()
            self._connection = None

    async def _problem(self, connection: RawClient, frames: WireFrames) -> str | None:
        try:
            for piece in pieces(self._names.put(frames.data), frames.pieces):
                _send(connection, piece)
                await asyncio.sleep(0)
            if frames.is_whole:
                return await self._answers_problem(connection)
            if not connection.is_closing:
                connection.send_eof()
                await connection.rest()
        except (asyncio.IncompleteReadError, ConnectionError):
            self._results["connection closed"] += 1
        if frames.welcomed:
            self.disconnect()
        return None

    async def _answers_problem(self, connection: RawClient) -> str | None:
        """Ask for the device's record, and read up to its answer. ConnectionError: the gateway ends the connection."""
        marker = next(self._markers)
        _send(connection, frame(TEXT, b'{"type":"get_device","id":%d}' % marker))
        while True:
            received = await connection.next()
            if received.opcode == CLOSE:
                raise ConnectionError
            if received.opcode != TEXT or received.payload.startswith(_PUSH):
                continue
            answer = json.loads(received.payload)
            if answer.get("code") == 500:
                return f"the gateway answered {answer}"
            if answer.get("id") == marker:
                self._results["frame answered or ignored"] += 1
                return None
            if "code" in answer:
                self._results[f"frame refused with {answer['code']}"] += 1

    async def _welcomed(self) -> RawClient:
        connection = await RawClient.connect(self._port)
        welcome = await connection.hello(self._names.appkeys[0], **self._credentials)
        self._credentials = {"token": welcome["token"], "key": welcome["key"]}
        return connection


def _send(connection: RawClient, data: bytes) -> None:
    """Send the data. ConnectionError: the gateway has ended the connection."""
    if connection.is_closing:
        raise ConnectionError
    connection.send(data)
