"""An edge that was stopped and goes on: requests that waited in its sockets may have been repeated elsewhere."""

import httpx
import pytest

from edge.core.idempotency import HEADER
from edge.interfaces import Interfaces
from edge.settings import EdgeSettings
from services.domain.topics import PUSH_COMMANDS, TASK_COMMANDS
from services.log.port import Partition
from services.process.clock import HUNG_MS, WARY_MS
from testkit.edge.role import PARTITIONS, EdgeInstallation
from testkit.edge.v2_bodies import broadcast
from testkit.faults.crashing_log import records_of
from testkit.faults.hung_process import RealTime
from testkit.services import running_services
from testkit.signing import signed


async def commands(installation: EdgeInstallation) -> int:
    """Return how many commands to send pushes are in the log."""
    topics = (PUSH_COMMANDS.name, TASK_COMMANDS.name)
    partitions = [Partition(topic, number) for topic in topics for number in range(PARTITIONS)]
    partitions = [
        each for each in partitions if each.number < installation.context.log.topics[each.topic].partitions(PARTITIONS)
    ]
    return sum([len(await records_of(installation.context.log, partition)) for partition in partitions])


@pytest.mark.parametrize("headers", [{HEADER: "key"}, {}], ids=["with a key", "without"])
async def test_an_edge_that_has_hung_sends_nothing_for_some_seconds(
    installation: EdgeInstallation, monkeypatch: pytest.MonkeyPatch, headers: dict[str, str]
) -> None:
    real_time = RealTime(monkeypatch)
    app = await installation.app()
    content = signed(broadcast(app), installation.secrets[app.appkey])

    async def result(given: dict[str, str]) -> int:
        response = await installation.http.post("/v2/push", content=content, headers=given)
        return int(response.json()["result"])

    before = await commands(installation)
    real_time.pass_ms(2 * HUNG_MS)
    assert await result(headers) == 500
    assert await commands(installation) == before
    real_time.pass_ms(WARY_MS)
    assert await result(headers) == 0
    assert await commands(installation) > before


async def test_a_limiter_whose_clock_is_moved_has_not_hung(installation: EdgeInstallation) -> None:
    interfaces = Interfaces(EdgeSettings(partitions=PARTITIONS), installation.context, installation.clock)
    app = await installation.app()
    content = signed(broadcast(app), installation.secrets[app.appkey])
    http = httpx.AsyncClient(transport=httpx.ASGITransport(interfaces.v2), base_url="http://edge")
    async with running_services([interfaces.hangs]), http:
        for _ in range(2):
            assert (await http.post("/v2/push", content=content)).json()["result"] == 0
            installation.clock.move(2 * HUNG_MS / 1000)
