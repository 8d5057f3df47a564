"""`carillon up` is stopped, started again and killed: no accepted push is lost or shown twice."""

import asyncio
import contextlib
import functools
import itertools
import json
import random
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from services.domain.topics import DELIVERIES, TOPICS
from services.log.port import Partition, Record
from services.log.sqlite.log import SqliteLog
from services.process.data_directory import lock_directory
from testkit.delivery.records import SHOWN, outcome_rows
from testkit.device import VirtualDevice
from testkit.installation.app_server import AppCredentials, AppServer
from testkit.installation.draining import accepted_for
from testkit.installation.processes import Installation
from testkit.waiting import until, until_holds
from tests.journeys.test_push import message, shown

DEVICES = 4
KILLS = 3
PARTITIONS = 32
ANSWERED_PER_RUN = 200
MOST_WAITING = 40
"""Messages that may wait for a device: at most 100 are kept, and a device may take long to connect again."""


@pytest.fixture
def installation(tmp_path: Path) -> Iterator[Installation]:
    installation = Installation(tmp_path / "data", None)
    installation.env["CARILLON_DRAIN_S"] = "1"
    installation.start()
    yield installation
    installation.close()


@pytest.mark.long
async def test_a_second_start_has_the_state_of_the_first(installation: Installation) -> None:
    app = installation.create_app()
    server = AppServer(installation.v2_url)
    device = VirtualDevice(installation.gateway_url, app.appkey)
    await device.connect()
    await device.request({"type": "set_alias", "alias": "alice"})
    await device.request({"type": "add_stags", "stags": ["news"]})
    await device.close()
    before = await server.push(message(app, 4, "kept while it was down", alias="alice"), app.secret_key)
    option = {"timed": 2, "send_time_interval": 1}
    timed = await server.push(message(app, 6, "due while it was down", option, stag=[["news"]]), app.secret_key)
    analytics, carillon = installation.child_process("analytics"), installation.process_id()
    analytics.send_signal(signal.SIGINT)

    async def push_again() -> None:
        again = AppServer(installation.v2_url)
        try:
            assert (await again.push(message(app, 6, "for nobody", stag=[["none"]]), app.secret_key))["result"] == 0
        finally:
            await again.close()

    assert await accepted_for(carillon, signal.SIGINT, push_again) >= 1
    installation.wait_stopped()
    assert not analytics.is_running()
    installation.start()
    assert app.appkey in installation.carillon("app", "list", "--json")
    back = VirtualDevice(installation.gateway_url, app.appkey, token=device.token, key=device.key)
    await back.connect()
    after = await server.push(message(app, 6, "after the start", stag=[["news"]]), app.secret_key)
    try:
        contents = {(await shown(back))["content"] for _ in range(3)}
    finally:
        await back.close()
        await server.close()
    assert contents == {"kept while it was down", "due while it was down", "after the start"}
    assert [answer["result"] for answer in (before, timed, after)] == [0, 0, 0]
    for role in ("registry", "targeting", "scheduling", "delivery"):
        assert json.loads(installation.carillon("replay", role, "--verify", "--json"))["equal"], role
    await asyncio.to_thread(installation.kill)
    with lock_directory(installation.data), lock_directory(installation.data / "analytics", "running.lock"):
        pass  # Nobody uses the directory any more.


@pytest.mark.long
async def test_kill_9_while_pushes_are_sent(installation: Installation) -> None:
    """Every push answered with 0 is shown on its device exactly once, and reported as shown."""
    app = installation.create_app()
    soon = functools.partial(random.uniform, 0, 0.1)  # At most 3 s before a device connects again.
    devices = [VirtualDevice(installation.gateway_url, app.appkey, random=soon) for _ in range(DEVICES)]
    for device in devices:
        await device.connect()
    expected: list[set[str]] = [set() for _ in devices]
    counts: list[Counter[str]] = [Counter() for _ in devices]
    counting = [asyncio.create_task(_count_shown(*each)) for each in zip(devices, counts, strict=True)]

    def waiting() -> list[set[str]]:
        return [contents - shown.keys() for contents, shown in zip(expected, counts, strict=True)]

    async def send_continuously() -> None:
        server = AppServer(installation.v2_url)
        for serial in itertools.count(step=8):
            await until_holds(lambda: max(map(len, waiting())) < MOST_WAITING)
            await asyncio.gather(*(_send(server, app, devices, expected, serial + offset) for offset in range(8)))

    sending = asyncio.create_task(send_continuously())

    async def until_more_are_answered() -> None:
        enough = sum(map(len, expected)) + ANSWERED_PER_RUN
        await until_holds(lambda: sum(map(len, expected)) >= enough or sending.done(), 120)

    for _ in range(KILLS):
        await until_more_are_answered()
        await asyncio.to_thread(installation.kill)
        await asyncio.to_thread(installation.start)
    await until_more_are_answered()
    sending.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await sending
    with contextlib.suppress(TimeoutError):
        await until_holds(lambda: not any(waiting()))
    assert waiting() == [set()] * DEVICES
    await until(lambda: _reported_all(installation, counts))
    for device, task in zip(devices, counting, strict=True):
        task.cancel()
        await device.close()
    installation.stop()
    assert [{content: count for content, count in shown.items() if count > 1} for shown in counts] == [{}] * DEVICES


async def _reported_all(installation: Installation, counts: list[Counter[str]]) -> bool:
    """Return whether the log has a report of each message that the devices have shown."""
    log = SqliteLog(installation.data / "log" / "events.db", TOPICS, read_only=True)
    try:
        ends = await log.ends(Partition(DELIVERIES.name, number) for number in range(PARTITIONS))
        records = [record for partition, end in ends.items() for record in await _records(log, partition, end)]
    finally:
        await log.close()
    reported = [row for each in records for row in outcome_rows(each) if row.kind == SHOWN]
    return len(reported) == sum(shown.total() for shown in counts)


async def _records(log: SqliteLog, partition: Partition, end: int) -> list[Record]:
    reader, records = await log.open({partition: 0}), list[Record]()
    while len(records) < end:
        records += await reader.read()
    await reader.close()
    return records


async def _count_shown(device: VirtualDevice, counts: Counter[str]) -> None:
    while True:
        event = await device.events.get()
        if event["type"] == "push":
            counts[event["content"]] += 1


async def _send(
    server: AppServer, app: AppCredentials, devices: list[VirtualDevice], expected: list[set[str]], number: int
) -> None:
    """Send a unicast, or each tenth time a broadcast; a request without an answer counts as not accepted."""
    index = number % DEVICES
    content = f"push {number}"
    everyone = number % 10 == 0
    token = {"android": devices[index].token}
    body = message(app, 1, content) if everyone else message(app, 5, content, token=token)
    try:
        answer = await server.push(body, app.secret_key)
    except httpx.TransportError:
        await asyncio.sleep(0.02)
        return
    if answer["result"] == 0:
        for contents in expected if everyone else [expected[index]]:
            contents.add(content)
