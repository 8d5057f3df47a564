"""Every process is restarted as Kubernetes does it after a change of the settings: all roles at once."""

import asyncio
import contextlib
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from testkit import plain_http
from testkit.device import VirtualDevice
from testkit.installation.app_server import AppCredentials
from testkit.installation.balancer import HAPROXY, SERVED_BY
from testkit.installation.cluster import ClusterInstallation
from testkit.kafka.broker import skip_without_kafka
from testkit.kafka.cluster import KafkaCluster
from testkit.signing import signed
from tests.journeys.test_push import message

WORKLOADS = ("registry", "targeting", "scheduling", "delivery", "analytics", "edge", "gateway")


@pytest.mark.long
@pytest.mark.kafka
@pytest.mark.timeout(1200)
@pytest.mark.skipif(HAPROXY is None, reason="HAProxy is not installed: apt-get install haproxy")
async def test_a_roll_of_everything_at_once_answers_no_request_with_an_error(tmp_path: Path) -> None:
    """Of each role one process after the other, standbys before owners, while pushes are sent and looked up."""
    skip_without_kafka()
    cluster = KafkaCluster(tmp_path / "kafka", count=1)
    with contextlib.ExitStack() as stack:
        stack.callback(cluster.stop)
        await asyncio.to_thread(cluster.start)
        carillon = stack.enter_context(contextlib.closing(ClusterInstallation(tmp_path / "data", cluster)))
        await asyncio.to_thread(carillon.start, seconds=180)
        await asyncio.to_thread(carillon.start_balancer)
        app = await asyncio.to_thread(carillon.create_app)
        device = VirtualDevice(carillon.gateway_url, app.appkey)
        await device.connect()
        rolled = asyncio.Event()
        answers: list[tuple[str, int, str]] = []

        async def ask() -> None:
            lookup = {"appkey": app.appkey, "action": "stag", "params": [device.token]}
            timed = message(app, 1, "later", {"timed": 2, "send_time_interval": 3600})
            tag = {"appkey": app.appkey, "action": "stag", "params": {device.token: ["news"]}}
            calls = (
                ("/v2/push", message(app, 1, "all")),
                ("/v2/push", message(app, 5, "one", token={"android": device.token})),
                ("/v2/push", timed),
                ("/v2/deviceinfo", lookup),
                ("/v2/device", tag),
            )
            async with plain_http.async_client(timeout=60) as http:
                while not rolled.is_set():
                    for path, body in calls:
                        answer = await http.post(f"{carillon.v2_url}{path}", content=signed(body, app.secret_key))
                        answers.append((path, answer.status_code, answer.text))
                    await asyncio.sleep(0.05)

        async def roll(names: Sequence[str]) -> None:
            for name in names:
                await asyncio.to_thread(carillon.stop, name)
                await asyncio.to_thread(carillon.start, name, seconds=180)

        asking = asyncio.create_task(ask())
        await asyncio.gather(*(roll(carillon.of_role(role)[::-1]) for role in WORKLOADS))
        rolled.set()
        await asking
        await device.close()
        wrong = [each for each in answers if each[1] != 200 or '"result":0' not in each[2].replace(" ", "")]
        assert not wrong, f"{len(wrong)} of {len(answers)}: {wrong[:5]}"
        assert len(answers) > 100
        await asyncio.to_thread(carillon.carillon, "app", "set", app.appkey, "--requests-per-s", "4")
        assert await _admitted_beyond(carillon.v2_url, app, per_s=4) <= 0


async def _admitted_beyond(url: str, app: AppCredentials, per_s: int) -> float:
    """Send many requests over all edges; return how many more were admitted than the quota of all together allows."""
    body = signed({"appkey": app.appkey, "action": "stag", "params": ["t"]}, app.secret_key)
    async with plain_http.async_client(timeout=60) as http:
        while (await http.post(f"{url}/v2/deviceinfo", content=body)).status_code != 429:
            pass  # until both edges know of the quota, and of each other
        began_s, admitted, servers = time.monotonic(), 0, set()
        for _ in range(60):
            asked = (http.post(f"{url}/v2/deviceinfo", content=body) for _ in range(8))
            for answer in await asyncio.gather(*asked):
                admitted += answer.status_code != 429
                servers.add(answer.headers[SERVED_BY])
            await asyncio.sleep(0.1)
        elapsed_s = time.monotonic() - began_s
    assert len(servers) == 2
    return admitted - per_s * elapsed_s - per_s - len(servers)
