"""Sends the fuzzer's cases to the HTTP interfaces: to their applications, or over sockets to any listener."""

import asyncio
import contextlib
from collections import Counter

from testkit.edge.asgi import AsgiRequest
from tests.soak.fuzz.answers import Answer, checked, checked_bytes, head_problem, pipeline_problem, repeated_problem
from tests.soak.fuzz.cases import Call, Head, Names, Pipeline, pieces
from tests.soak.fuzz.service import FuzzedService

_HEAD_S = 0.2
_PUSH_PATHS = ("/push", "/v2/push", "/timed_msg")


class HttpClient:
    """Sends cases with the names of one organisation. `results` counts the answers."""

    def __init__(self, service: FuzzedService, names: Names, results: Counter[str]) -> None:
        self._service = service
        self._names = names
        self._results = results

    async def call(self, call: Call) -> str | None:
        """Send a call `times` times; return the problem with one of the answers, or None."""
        send = self._by_socket if call.by_socket else self._by_application
        answers = await asyncio.gather(*(send(call) for _ in range(call.times)))
        problem = next((answer.problem for answer in answers if answer.problem), None)
        return repeated_problem(answers) if problem is None and _is_keyed(call) else problem

    async def pipeline(self, pipeline: Pipeline) -> str | None:
        *first, last = pipeline.calls
        requests = [*(self._request(call) for call in first), self._request(last, (b"connection", b"close"))]
        data = await self._exchange(pipeline.interface, b"".join(requests), leaves=pipeline.leaves)
        return pipeline_problem(self._results, data)

    async def head(self, head: Head) -> str | None:
        """Send a head as it is; end the sending side when no answer comes, for the head may want more."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self._service.ports[head.port])
        with contextlib.closing(writer):
            writer.write(self._names.put(head.data))
            for _ in range(2):
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_HEAD_S):
                        return head_problem(await _rest(reader))
                with contextlib.suppress(OSError, RuntimeError):  # uvloop: RuntimeError once the connection has ended
                    writer.write_eof()
        return None

    async def _by_socket(self, call: Call) -> Answer:
        request = self._request(call, (b"connection", b"close"))
        data = await self._exchange(call.interface, request, leaves=call.leaves)
        return checked_bytes(self._results, data, call.method)

    async def _exchange(self, interface: str, data: bytes, *, leaves: bool) -> bytes:
        """Send the data over a connection of its own and return all that comes; nothing where the client leaves."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self._service.ports[interface])
        with contextlib.closing(writer):
            writer.write(data)
            if not leaves:
                return await _rest(reader)
            with contextlib.suppress(ConnectionError):
                await writer.drain()
            writer.transport.abort()
            return b""

    def _request(self, call: Call, *more: tuple[bytes, bytes]) -> bytes:
        """Return the bytes of a request. A body in pieces is chunked; one whose client leaves lacks its end."""
        body = self._names.signed(call)
        if call.pieces > 1:
            framing = (b"transfer-encoding", b"chunked")
            content = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces(body, call.pieces))
            content += b"" if call.leaves else b"0\r\n\r\n"
        else:
            framing = (b"content-length", b"%d" % len(body))
            content = body[: len(body) // 2] if call.leaves else body
        lines = [f"{call.method} ".encode() + call.path.encode() + b" HTTP/1.1", b"host: a"]
        lines += [name + b": " + value for name, value in (*call.headers, framing, *more)]
        return b"\r\n".join([*lines, b"", content])

    async def _by_application(self, call: Call) -> Answer:
        body = self._names.signed(call)
        port = self._service.ports[call.interface]
        received = pieces(body, call.pieces) if call.pieces > 1 or call.leaves else None
        request = AsgiRequest(call.method, call.path, call.headers, body, port, pieces=received, is_cut=call.leaves)
        try:
            answer = await request.answer(self._service.applications[call.interface])
        except Exception as error:
            return Answer(problem=f"the application raised {type(error).__name__}: {error}")
        if answer is None:
            return Answer(problem=None if call.leaves else "the application did not answer")
        return checked(self._results, answer.status, answer.body, call.method)


def _is_keyed(call: Call) -> bool:
    """Whether the call is one whose repeats get the first answer: a push under one idempotency key."""
    return call.path in _PUSH_PATHS and sum(name == b"idempotency-key" for name, _ in call.headers) == 1


async def _rest(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.read()
    except OSError:  # uvloop: ENOTCONN where the service has reset the connection before this side ends
        return b""
