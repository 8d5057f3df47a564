"""Kafka is away for a while: app servers behind a load balancer get JSON, and look-ups are answered."""

import asyncio
import contextlib
import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from services.domain.role_context import ROLES_WITH_STANDBYS
from testkit import plain_http
from testkit.device import VirtualDevice
from testkit.installation.app_server import AppCredentials
from testkit.installation.balancer import CHECK_INTERVAL_S, CHECKS_FAILED, HAPROXY, Balancer, Listener, Server
from testkit.installation.processes import Installation
from testkit.kafka.broker import KafkaBroker
from testkit.signing import signed
from testkit.waiting import until
from tests.journeys.test_push import message, shown

ROLES = ("registry", "targeting", "scheduling", "delivery", "gateway", "edge")


@pytest.mark.long
@pytest.mark.kafka
@pytest.mark.skipif(HAPROXY is None, reason="HAProxy is not installed: apt-get install haproxy")
async def test_a_balancer_keeps_its_edges_while_kafka_is_away_from_all(
    tmp_path: Path, empty_broker: KafkaBroker
) -> None:
    with contextlib.closing(Installation(tmp_path / "data", empty_broker.bootstrap)) as carillon:
        await asyncio.to_thread(carillon.start, *ROLES)
        operations = carillon.operations_url("edge")
        edge = Server("edge", _port(carillon.v2_url), _port(operations))
        with contextlib.closing(Balancer(tmp_path / "balancer", [Listener("http", [edge])])) as balancer:
            await asyncio.to_thread(balancer.start)
            missing = [
                "analytics: no process of this role was heard of",
                *(f"{role}, shard 0: no standby that has caught up" for role in sorted(ROLES_WITH_STANDBYS)),
            ]

            async def are_alone_missing() -> bool:
                told = await asyncio.to_thread(carillon.carillon, "upgrade", "--check", "--json", check=False)
                checked = json.loads(told)
                assert {each["role"] for each in checked["processes"]} == set(ROLES)
                return sorted(checked["findings"]) == missing

            await until(are_alone_missing, 60)
            app = await asyncio.to_thread(carillon.create_app)
            device = VirtualDevice(carillon.gateway_url, app.appkey)
            await device.connect()
            url = f"http://127.0.0.1:{balancer.ports[0]}"
            lookup = {"appkey": app.appkey, "action": "stag", "params": [device.token]}
            page = {"appkey": {"android": app.appkey}, "page_num": 1, "page_size": 5}
            async with plain_http.async_client(timeout=60) as http:
                assert await _result(http, f"{url}/v2/push", message(app, 1, "before"), app) == 0
                assert (await shown(device))["content"] == "before"
                empty_broker.pause()
                try:
                    assert await _result(http, f"{url}/v2/push", message(app, 1, "refused"), app) == 500

                    async def serves_and_names_the_log() -> bool:
                        assert await _result(http, f"{url}/v2/deviceinfo", lookup, app) == 0
                        assert await _result(http, f"{url}/v2/timedtasklist", page, app) == 0
                        health = await http.get(f"{operations}/healthz")
                        assert (health.status_code, health.json()["status"]) == (200, "ready")
                        return "log" in health.json().get("problems", {})

                    await until(serves_and_names_the_log, 60)
                    for _ in range(2 * CHECKS_FAILED):
                        assert await serves_and_names_the_log()
                        await asyncio.sleep(CHECK_INTERVAL_S)  # HAProxy has no clock that a test could move
                finally:
                    empty_broker.resume()

                async def accepts() -> bool:
                    return await _result(http, f"{url}/v2/push", message(app, 1, "after"), app) == 0

                await until(accepts, 60)
                while (await shown(device))["content"] != "after":
                    pass
            await device.close()


def _port(url: str) -> int:
    return int(url.rpartition(":")[2])


async def _result(http: httpx.AsyncClient, url: str, body: dict[str, Any], app: AppCredentials) -> int:
    """Send a signed request; return the result of the answer, which must be JSON."""
    answer = await http.post(url, content=signed(body, app.secret_key))
    return int(answer.json()["result"])
