"""The operations endpoint of a process, and the HTTP listener."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx
import pytest

from services.errors import CarillonError
from services.net.http.operations import METRICS_PORT, MetricsListener, Operations
from services.net.http.server import HttpListener
from services.process.metrics import RPC_SECONDS
from testkit import plain_http

BOUND_S = 60.0


class RunningListener:
    """Runs a listener while the block runs, at `url`."""

    def __init__(self, listener: HttpListener | Operations | MetricsListener) -> None:
        self._listener = listener

    async def __aenter__(self) -> httpx.AsyncClient:
        ready = asyncio.Event()
        self.task = asyncio.create_task(self._listener.run(ready))
        await asyncio.wait_for(ready.wait(), BOUND_S)
        self._client = plain_http.async_client(base_url=f"http://127.0.0.1:{self._listener.port}", timeout=BOUND_S)
        return self._client

    async def __aexit__(self, *_: object) -> None:
        self.task.cancel()
        await asyncio.wait([self.task], timeout=BOUND_S)
        await self._client.aclose()


@pytest.fixture
async def operations() -> Operations:
    return Operations("127.0.0.1", 0)


@pytest.fixture
async def client(operations: Operations) -> AsyncIterator[httpx.AsyncClient]:
    async with RunningListener(operations) as client:
        yield client


async def test_health_is_200_while_the_process_is_ready_and_503_before_and_after(
    operations: Operations, client: httpx.AsyncClient
) -> None:
    before = await client.get("/healthz")
    assert (before.status_code, before.content) == (503, b'{"status":"starting"}')
    assert "\ncarillon_ready 0.0\n" in (await client.get("/metrics")).text
    operations.set_ready()
    assert "\ncarillon_ready 1.0\n" in (await client.get("/metrics")).text
    after = await client.get("/healthz")
    assert (after.status_code, after.content) == (200, b'{"status":"ready"}')
    assert after.headers["content-type"] == "application/json"
    operations.set_stopping()
    assert "\ncarillon_ready 0.0\n" in (await client.get("/metrics")).text
    stopping = await client.get("/healthz")
    assert (stopping.status_code, stopping.content) == (503, b'{"status":"stopping"}')
    assert (await client.get("/livez")).status_code == 200


async def test_a_starting_process_is_alive(client: httpx.AsyncClient) -> None:
    answer = await client.get("/livez")
    assert (answer.status_code, answer.content) == (200, b'{"status":"alive"}')


async def test_metrics_are_prometheus_text(client: httpx.AsyncClient) -> None:
    RPC_SECONDS.labels("a-method-of-this-test").observe(0.5)
    answer = await client.get("/metrics")
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/plain")
    assert 'carillon_rpc_seconds_count{method="a-method-of-this-test"} 1.0' in answer.text


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/", 404),
        ("GET", "/healthz/", 404),
        ("POST", "/nothing", 404),
        ("POST", "/healthz", 405),
        ("DELETE", "/metrics", 405),
        ("POST", "/livez", 405),
        ("OPTIONS", "/healthz", 405),
    ],
)
async def test_other_paths_and_methods_are_refused(
    client: httpx.AsyncClient, method: str, path: str, status: int
) -> None:
    answer = await client.request(method, path)
    assert answer.status_code == status
    assert answer.json().keys() == {"status"}
    assert answer.headers.get("allow") == ("GET, HEAD" if status == 405 else None)


async def test_head_has_the_headers_of_get_and_no_body(operations: Operations, client: httpx.AsyncClient) -> None:
    operations.set_ready()
    answer = await client.head("/healthz")
    assert (answer.status_code, answer.content) == (200, b"")
    assert answer.headers["content-length"] == str(len(b'{"status":"ready"}'))


@pytest.mark.parametrize(("has_pages", "listener"), [(False, "operations"), (True, "console")])
async def test_connections_to_pages_are_counted_apart_from_those_of_operations_alone(
    has_pages: bool, listener: str
) -> None:
    async def pages(*_: Any) -> None:
        raise AssertionError("no page is asked for")

    operations = Operations("127.0.0.1", 0, pages=pages if has_pages else None)
    async with (
        RunningListener(operations) as client,
        RunningListener(operations.metrics_listener("127.0.0.1", 0)) as own,
    ):
        assert (await client.get("/livez")).status_code == 200
        metrics = (await own.get("/metrics")).text
    assert f'\ncarillon_http_connections{{listener="{listener}"}} 1.0\n' in metrics


async def test_a_port_in_use_is_one_clear_line() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        ready = asyncio.Event()
        with pytest.raises(CarillonError) as raised:
            await asyncio.wait_for(Operations("127.0.0.1", port).run(ready), BOUND_S)
    assert str(raised.value).startswith(
        f"the operations endpoint (CARILLON_CONSOLE_PORT) cannot listen at 127.0.0.1:{port}: Address already in use;"
    )
    assert "\n" not in str(raised.value)
    assert not ready.is_set()


async def test_a_host_that_is_not_this_machine_is_one_clear_line() -> None:
    with pytest.raises(CarillonError, match=r"^a listener cannot listen at 192\.0\.2\.1:0: "):
        await HttpListener("a listener", _answering(lambda: None), "192.0.2.1", 0).run(asyncio.Event())


async def test_a_closing_listener_answers_accepted_requests_and_accepts_no_more() -> None:
    taken, finish = asyncio.Event(), asyncio.Event()

    async def application(scope: Any, receive: Any, send: Any) -> None:
        taken.set()
        await finish.wait()
        await _answering(lambda: None)(scope, receive, send)

    opened = RunningListener(HttpListener("a listener", application, "127.0.0.1", 0))
    async with opened as client:
        call = asyncio.create_task(client.get("/"))
        await asyncio.wait_for(taken.wait(), BOUND_S)
        opened.task.cancel()
        with pytest.raises(ConnectionRefusedError):
            await connect_until_refused(client.base_url.port)
        assert not opened.task.done()
        finish.set()
        assert (await asyncio.wait_for(call, BOUND_S)).text == "done"
        await asyncio.wait([opened.task], timeout=BOUND_S)
        assert opened.task.cancelled()


async def connect_until_refused(port: int | None) -> None:
    async with asyncio.timeout(BOUND_S):
        while True:
            with contextlib.suppress(ConnectionResetError):
                _, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.close()
            await asyncio.sleep(0.01)


def _answering(note: Callable[[], None]) -> Any:
    async def application(scope: Any, receive: Any, send: Any) -> None:
        note()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"4")]})
        await send({"type": "http.response.body", "body": b"done"})

    return application


async def test_pages_are_served_beside_the_operations_once_the_process_is_ready() -> None:
    async def pages(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"4")]})
        await send({"type": "http.response.body", "body": b"page"})

    operations = Operations("127.0.0.1", 0, pages=pages)
    async with RunningListener(operations) as client:
        early = await client.get("/apps")
        assert (early.status_code, early.content) == (503, b'{"status":"starting"}')
        operations.set_ready()
        assert (await client.get("/apps")).content == b"page"
        assert (await client.get("/healthz")).content == b'{"status":"ready"}'
        for path in ("/metrics", "/%6detrics", "//metrics", "/healthz/../metrics"):
            assert (await client.get(path)).content == b"page", path
        async with RunningListener(operations.metrics_listener("127.0.0.1", 0)) as own:
            assert "carillon_ready 1.0" in (await own.get("/metrics")).text
            assert (await own.post("/metrics")).status_code == 405


async def test_a_default_port_of_metrics_that_is_in_use_is_done_without() -> None:
    operations = Operations("127.0.0.1", 0)
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with contextlib.suppress(OSError):  # another program may have it already
            taken.bind(("127.0.0.1", METRICS_PORT))
            taken.listen()
        ready = asyncio.Event()
        running = asyncio.create_task(operations.metrics_listener("127.0.0.1", None).run(ready))
        await asyncio.wait_for(ready.wait(), BOUND_S)
        running.cancel()
        with pytest.raises(CarillonError, match=r"^the metrics \(CARILLON_METRICS_PORT\) cannot listen"):
            await operations.metrics_listener("127.0.0.1", METRICS_PORT).run(asyncio.Event())
