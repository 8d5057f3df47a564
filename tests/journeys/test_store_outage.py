"""An outage of the analytics store or process: pushes continue, and afterwards the store has each of them once."""

import asyncio
import contextlib
import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from analytics.store.clickhouse import ClickHouse
from services.net.child import CHECK_S, SILENT_CHECKS
from testkit import plain_http
from testkit.clickhouse.server import ClickHouseServer
from testkit.device import VirtualDevice
from testkit.installation.app_server import AppCredentials, AppServer
from testkit.installation.processes import Installation
from testkit.waiting import until
from tests.journeys.test_push import ANALYTICS_S, message, shown

PUSHES = 20
FEW = 6


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ClickHouseServer]:
    server = ClickHouseServer(tmp_path / "clickhouse")
    server.start()
    yield server
    server.kill()


@pytest.fixture
def installation(tmp_path: Path, store: ClickHouseServer) -> Iterator[Installation]:
    with contextlib.closing(Installation(tmp_path / "data", None)) as installation:
        installation.env["CARILLON_CLICKHOUSE_URL"] = f"{store.url}/history"
        installation.start()
        yield installation
        installation.stop()


@pytest.mark.long
async def test_pushes_continue_without_the_store(installation: Installation, store: ClickHouseServer) -> None:
    app = installation.create_app()
    server = AppServer(installation.v2_url)
    device = VirtualDevice(installation.gateway_url, app.appkey)
    await device.connect()
    await asyncio.to_thread(store.kill)

    msgids = []
    for number in range(PUSHES):
        assert (await device.request({"type": "add_tags", "tags": [number]}))["type"] == "ok"
        answer = await server.push(message(app, 6, f"push {number}", tag=[[number]]), app.secret_key)
        assert answer["result"] == 0, answer
        assert (await shown(device))["content"] == f"push {number}"
        msgids.append(answer["id"])
    question = {"appkey": app.appkey, "type": 2, "param": {"category": 0, "dur": {"timeScope": 0}}}
    refused = await server.call("POST", "/v2/statistics", question, app.secret_key, statuses=(503,))
    assert refused["result"] == 503

    await asyncio.to_thread(store.start)
    clickhouse = ClickHouse(store.url, Path(), "history")
    await clickhouse.open()

    async def is_complete() -> bool:
        (counts,) = await clickhouse.rows("SELECT (SELECT count() FROM deliveries), (SELECT count() FROM pushes)")
        return int(counts[0]) >= 3 * PUSHES and int(counts[1]) >= PUSHES

    await until(is_complete, 60)
    assert [row[0] for row in await clickhouse.rows("SELECT msgid FROM pushes ORDER BY msgid")] == msgids
    outcomes = await clickhouse.rows(
        "SELECT kind, count(), uniqExact(msgid) FROM deliveries GROUP BY kind ORDER BY kind"
    )
    assert [tuple(row) for row in outcomes] == [(kind, PUSHES, PUSHES) for kind in ("received", "sent", "shown")]
    await clickhouse.close()
    told = json.loads(await asyncio.to_thread(installation.carillon, "audit", "push", str(msgids[-1]), "--json"))
    assert (told["records_behind"], told["states"]) == (0, [{"state": "shown", "reason": "", "devices": 1}])
    await device.close()
    await server.close()


@pytest.mark.long
async def test_a_start_does_not_wait_for_the_store(installation: Installation, store: ClickHouseServer) -> None:
    app = installation.create_app()
    await asyncio.to_thread(installation.stop)
    await asyncio.to_thread(store.kill)
    await asyncio.to_thread(installation.start)
    server = AppServer(installation.v2_url)
    device = VirtualDevice(installation.gateway_url, app.appkey)
    await device.connect()
    answer = await server.push(message(app, 1, "to all"), app.secret_key)
    assert answer["result"] == 0, answer
    assert (await shown(device))["content"] == "to all"

    await asyncio.to_thread(store.start)
    question = {"appkey": app.appkey, "type": 2, "param": {"category": 0, "dur": {"timeScope": 0}}}

    async def counted() -> bool:
        """Return whether the statistic is right; it is refused until the store has caught up with the log."""
        answer = await server.call("POST", "/v2/statistics", question, app.secret_key, statuses=(200, 503))
        return answer["result"] == 0 and [row["count"] for row in answer["data"]] == [1]

    await until(counted, 60)
    await device.close()
    await server.close()


@pytest.mark.long
@pytest.mark.parametrize("carillon", ["embedded"], indirect=True)
async def test_pushes_go_on_without_the_console_process(
    carillon: Installation, app: AppCredentials, server: AppServer
) -> None:
    device = VirtualDevice(carillon.gateway_url, app.appkey)
    await device.connect()
    url = carillon.console_url()
    former = carillon.child_process("console")
    async with plain_http.async_client(timeout=60) as browser:
        assert (await browser.get(f"{url}/log-in")).status_code == 200
        for path in ("/metrics", "/%6detrics"):

            async def is_not_found(path: str = path) -> bool:
                answer = await browser.get(f"{url}{path}", headers={"Connection": "close"})
                assert "carillon_" not in answer.text
                assert answer.status_code in (404, 503), answer.text
                return answer.status_code == 404

            await until(is_not_found)
        former.kill()
        former.wait()
        assert (await browser.get(f"{url}/log-in")).status_code == 503
        for count in range(FEW):
            assert (await server.push(message(app, 1, f"push {count}"), app.secret_key))["result"] == 0
            assert (await shown(device))["content"] == f"push {count}"

        async def is_back() -> bool:
            assert (await browser.get(f"{url}/healthz")).json() == {"status": "ready"}
            return (await browser.get(f"{url}/log-in")).status_code == 200

        await until(is_back, ANALYTICS_S)
        assert carillon.child_process("console").pid != former.pid
        metrics = (await browser.get(carillon.metrics_url())).text
    assert 'carillon_child_up{process="console"} 1.0' in metrics
    await device.close()

    async def answers(status: int) -> bool:
        """Return whether a new connection to the port is answered soon, and a page with this status."""
        try:
            async with plain_http.async_client(timeout=5) as browser:
                assert (await browser.get(f"{url}/healthz")).json() == {"status": "ready"}
                return (await browser.get(f"{url}/log-in")).status_code == status
        except httpx.TimeoutException:
            return False

    hanging = carillon.child_process("console")
    hanging.suspend()
    try:
        await until(lambda: answers(503), SILENT_CHECKS * CHECK_S)
    finally:
        hanging.resume()
    await until(lambda: answers(200), ANALYTICS_S)
    assert carillon.child_process("console").pid == hanging.pid


@pytest.mark.parametrize("carillon", ["embedded"], indirect=True)
@pytest.mark.parametrize("number", [signal.SIGKILL, pytest.param(signal.SIGSTOP, marks=pytest.mark.long)])
async def test_pushes_go_on_without_the_analytics_process(
    carillon: Installation, app: AppCredentials, server: AppServer, number: signal.Signals
) -> None:
    device = VirtualDevice(carillon.gateway_url, app.appkey)
    await device.connect()
    question = {"appkey": app.appkey, "type": 1, "param": {"msgid": -1}}
    former = carillon.child_process("analytics")
    for count in range(FEW):
        if count == FEW // 2:
            former.send_signal(number)
            refused = await server.call("POST", "/v2/statistics", question, app.secret_key, statuses=(503,))
            assert refused["result"] == 503
        answer = await server.push(message(app, 1, f"push {count}"), app.secret_key)
        assert answer["result"] == 0
        assert (await shown(device))["content"] == f"push {count}"
    health = await asyncio.to_thread(httpx.get, f"{carillon.operations_url()}/healthz")
    assert health.json() == {"status": "ready"}

    async def counts() -> list[dict[str, Any]]:
        """Return the counts of the pushes, once analytics answers and the device has shown all of them."""
        answer = await server.call("POST", "/v2/statistics", question, app.secret_key, statuses=(200, 503))
        rows: list[dict[str, Any]] = answer.get("data", [])
        return rows if len(rows) == FEW and all(row["shown"] for row in rows) else []

    rows = await until(counts, ANALYTICS_S)
    assert [[row[name] for name in ("target", "sent", "received", "shown")] for row in rows] == [[1, 1, 1, 1]] * FEW
    assert carillon.child_process("analytics").pid != former.pid
    metrics = (await asyncio.to_thread(httpx.get, carillon.metrics_url())).text
    assert 'carillon_child_up{process="analytics"} 1.0' in metrics
    assert 'carillon_analytics_rows_inserted_total{table="deliveries"}' in metrics
    await device.close()
