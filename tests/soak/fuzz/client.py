"""Sends the fuzzer's cases to the service, and says what is wrong with an answer."""

import asyncio
import contextlib
import json
from collections import Counter
from typing import Any

from testkit.edge.asgi import AsgiRequest
from testkit.gateway.websocket import CLOSE, TEXT, RawClient
from tests.soak.fuzz.cases import Call, Case, Head, Payload, WireFrames
from tests.soak.fuzz.service import FuzzedService

BOUND_S = 60.0
"""How long an answer may take on the busiest machine; a later one counts as none."""

_HEAD_S = 0.2
_MARKER = 2**52


class Client:
    """Sends one case at a time on its own connections; several clients send at once. `results` counts the answers."""

    def __init__(self, service: FuzzedService, results: Counter[str]) -> None:
        self._service = service
        self._results = results
        self._device: RawClient | None = None
        self._credentials: dict[str, str] = {}

    async def problem(self, case: Case) -> str | None:
        """Send the case and return what is wrong with its answer, or None."""
        try:
            async with asyncio.timeout(BOUND_S):
                return await self._send(case.payload, case.number)
        except TimeoutError:
            return f"no answer within {BOUND_S:g} s"

    def close(self) -> None:
        self._disconnect()

    async def _send(self, payload: Payload, number: int) -> str | None:
        match payload:
            case Call(by_socket=True):
                return self._http_problem(*await self._by_socket(payload))
            case Call():
                return await self._by_application(payload)
            case Head():
                return head_problem(await self._head(payload))
            case WireFrames():
                return await self._frames(payload, number)

    async def _by_application(self, call: Call) -> str | None:
        body = self._service.names.signed(call)
        request = AsgiRequest(call.method, call.path, call.headers, body, self._service.ports[call.interface])
        try:
            answer = await request.answer(self._service.applications[call.interface])
        except Exception as error:
            return f"the application raised {type(error).__name__}: {error}"
        if answer is None:
            return "the application did not answer"
        return self._answer_problem(answer.status, answer.body, call.method)

    async def _by_socket(self, call: Call) -> tuple[str, bytes]:
        body = self._service.names.signed(call)
        headers = [*call.headers, (b"connection", b"close"), (b"content-length", str(len(body)).encode())]
        lines = [f"{call.method} ".encode() + call.path.encode() + b" HTTP/1.1", b"host: a"]
        lines += [name + b": " + value for name, value in headers]
        reader, writer = await asyncio.open_connection("127.0.0.1", self._service.ports[call.interface])
        with contextlib.closing(writer):
            writer.write(b"\r\n".join([*lines, b"", body]))
            return call.method, await _rest(reader)

    async def _head(self, head: Head) -> bytes:
        """Send a head as it is; end the sending side when no answer comes, for the head may want more."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self._service.ports[head.port])
        with contextlib.closing(writer):
            writer.write(self._service.names.put(head.data))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_HEAD_S):
                    return await _rest(reader)
            with contextlib.suppress(OSError):
                writer.write_eof()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_HEAD_S):
                    return await _rest(reader)
            return b""

    async def _frames(self, frames: WireFrames, number: int) -> str | None:
        device = (
            self._device if frames.welcomed and self._device is not None else await self._connected(frames.welcomed)
        )
        self._device = device if frames.welcomed else None
        device.send(self._service.names.put(frames.data))
        if not frames.is_whole:
            device.send_eof()
            await device.rest()
            self._disconnect()
            return None
        marker = _MARKER + number
        device.send_json(type="get_device", id=marker)
        try:
            while True:
                received = await device.next()
                answer = json.loads(received.payload) if received.opcode == TEXT else {}
                if answer.get("code") == 500:
                    return f"the gateway answered {answer}"
                if answer.get("id") == marker:
                    self._results["frame answered or ignored"] += 1
                    return None
                if "code" in answer:
                    self._results[f"frame refused with {answer['code']}"] += 1
                if received.opcode == CLOSE:
                    break
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        self._results["connection closed"] += 1
        device.abort()
        self._disconnect()
        return None

    async def _connected(self, welcomed: bool) -> RawClient:
        device = await RawClient.connect(self._service.ports["gateway"])
        if welcomed:
            welcome = await device.hello(self._service.appkey, **self._credentials)
            self._credentials = {"token": welcome["token"], "key": welcome["key"]}
        return device

    def _disconnect(self) -> None:
        if self._device is not None:
            self._device.abort()
            self._device = None

    def _http_problem(self, method: str, data: bytes) -> str | None:
        """Return what is wrong with the answer to a call over a socket; the connection may end without one."""
        head, _, body = data.partition(b"\r\n\r\n")
        if head.startswith(b"HTTP/1.1 100"):
            head, _, body = body.partition(b"\r\n\r\n")
        if not head:
            return None
        return self._answer_problem(int(head.split()[1]), body, method)

    def _answer_problem(self, status: int, body: bytes, method: str) -> str | None:
        if status == 500:
            return f"HTTP 500: {body[:300]!r}"
        if not body or method == "HEAD" or status in (400, 431):
            self._results[f"HTTP {status}"] += 1
            return None
        try:
            answer = json.loads(body)
        except ValueError:
            return f"the answer is no JSON: {body[:300]!r}"
        self._results[f"result {answer.get('result')}" if isinstance(answer, dict) else "other"] += 1
        return f"result 500: {body[:300]!r}" if _holds_500(answer) else None


async def _rest(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.read()
    except ConnectionError:
        return b""


def head_problem(data: bytes) -> str | None:
    """Return what is wrong with the first answer to a bent head, whose framing may be anything."""
    words = data.split(maxsplit=2)
    return f"answered {data[:300]!r}" if len(words) > 1 and words[1] == b"500" else None


def _holds_500(value: Any) -> bool:
    children: Any = ()
    if isinstance(value, dict):
        if value.get("result") == 500:
            return True
        children = value.values()
    elif isinstance(value, list):
        children = value
    return any(_holds_500(child) for child in children)
