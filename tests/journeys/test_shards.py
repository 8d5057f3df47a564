"""Several processes a role: merged answers, and the restart of one process."""

import asyncio
import json
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from carillon.roles import REPLAYABLE
from services.domain.topics import device_key
from services.log.archive.directory import ArchiveDirectory
from services.log.identity import noted_log_identity
from services.log.topics import partition_of
from services.replica.state_copies import StateCopies
from testkit.device import VirtualDevice
from testkit.installation.app_server import AppCredentials, AppServer
from testkit.installation.definitions import BACKENDS
from testkit.installation.processes import Installation
from testkit.waiting import until, until_holds
from tests.journeys.test_push import audited, message, shown

pytestmark = [
    pytest.mark.kafka,
    pytest.mark.long,
    pytest.mark.parametrize("carillon", ["shards"], indirect=True),
]
DEVICES = 8
SHARDS = 2


async def devices_of(carillon: Installation, app: AppCredentials, count: int = DEVICES) -> list[VirtualDevice]:
    """Return connected devices, owned by different processes, all with one tag and one alias."""
    devices = [VirtualDevice(carillon.gateway_url, app.appkey) for _ in range(count)]
    for device in devices:
        await device.connect()
        assert (await device.request({"type": "set_alias", "alias": "all"}))["type"] == "ok"
        assert (await device.request({"type": "add_tags", "tags": [1]}))["type"] == "ok"
    return devices


async def all_show(devices: list[VirtualDevice], content: str) -> None:
    for device in devices:
        assert (await shown(device))["content"] == content


async def test_answers_include_the_devices_of_every_process(
    carillon: Installation, app: AppCredentials, server: AppServer
) -> None:
    devices = await devices_of(carillon, app)
    tokens = [device.token for device in devices]
    stags = {"appkey": app.appkey, "action": "stag", "params": {token: ["news"] for token in tokens}}
    added = await server.call("POST", "/v2/device", stags, app.secret_key)
    assert [entry["result"] for entry in added["detailsinfo"]] == [0] * DEVICES
    asked = {"appkey": app.appkey, "action": "stag", "params": tokens}
    listed = await server.call("POST", "/v2/deviceinfo", asked, app.secret_key)
    assert [entry["infolist"] for entry in listed["detailsinfo"]] == [["news"]] * DEVICES

    sent = await server.push(message(app, 1, "everyone"), app.secret_key)
    await all_show(devices, "everyone")
    for content, scope, target in (("stag", 6, {"stag": [["news"]]}), ("alias", 4, {"alias": ["all"]})):
        await server.push(message(app, scope, content, **target), app.secret_key)
        await all_show(devices, content)

    async def statistics(question: dict[str, Any]) -> list[dict[str, Any]]:
        """Return the rows, none while analytics has not taken in the newest records."""
        answer = await server.call("POST", "/v2/statistics", question, app.secret_key, statuses=(200, 503))
        rows: list[dict[str, Any]] = answer.get("data", [])
        return rows

    async def counted() -> bool:
        rows = await statistics({"appkey": app.appkey, "type": 1, "param": {"msgid": sent["id"]}})
        return [[row[name] for name in ("target", "sent", "received", "shown")] for row in rows] == [[DEVICES] * 4]

    await until(counted, 60)
    users = {"appkey": app.appkey, "type": 2, "param": {"category": 0, "dur": {"timeScope": 0}}}
    assert [row["count"] for row in await until(lambda: statistics(users))] == [DEVICES]
    audit = await audited(carillon, sent["id"], "command", "audience", "sent", "received")
    assert {int(e["count"]) for e in audit["timeline"] if e["event"] == "audience"} == {DEVICES}
    for device in devices:
        await device.close()


async def test_timed_messages_of_every_process_are_listed_and_cancelled(app: AppCredentials, server: AppServer) -> None:
    option = {"timed": 2, "send_time_interval": 3600}
    apps = {"appkey": {"android": app.appkey}}
    keys = [(await server.push(message(app, 1, "later", option), app.secret_key))["task_key"] for _ in range(6)]

    async def statuses() -> dict[str, str]:
        page = {**apps, "page_num": 1, "page_size": 50}
        listed = await server.call("POST", "/v2/timedtasklist", page, app.secret_key)
        return {record["TaskKey"]: record["Status"] for record in listed["data"]}

    assert await statuses() == dict.fromkeys(keys, "unsend")
    for key in keys:
        assert (await server.call("DELETE", "/v2/timed", {**apps, "task_key": key}, app.secret_key))["result"] == 0
    assert "unsend" not in (await statuses()).values()


async def test_a_killed_process_of_each_role_resumes(
    carillon: Installation, app: AppCredentials, server: AppServer
) -> None:
    devices = await devices_of(carillon, app)
    await server.push(message(app, 1, "before"), app.secret_key)
    await all_show(devices, "before")
    killed = [f"{role}-1" for role in ("registry", "targeting", "scheduling", "delivery", "analytics")]
    for name in killed:
        await asyncio.to_thread(carillon.kill, name)
    accepted = await server.push(message(app, 1, "meanwhile"), app.secret_key)
    await asyncio.to_thread(carillon.start, *killed)
    after = await server.push(message(app, 6, "after", tag=[[1]]), app.secret_key)
    assert (accepted["result"], after["result"]) == (0, 0)
    for content in ("meanwhile", "after"):
        await all_show(devices, content)
    await audited(carillon, after["id"], "command", "audience", "sent", "received")
    for device in devices:
        await device.close()


async def test_a_new_machine_starts_from_the_copy_of_a_state(
    carillon: Installation, app: AppCredentials, server: AppServer
) -> None:
    """What came after the copy is read from the log, and the states are those that the whole log gives."""
    devices = await devices_of(carillon, app)
    await server.push(message(app, 1, "before"), app.secret_key)
    await all_show(devices, "before")
    roles = ["registry", "targeting", "scheduling", "delivery"]
    lost = [f"{role}-1" for role in roles]
    await asyncio.to_thread(carillon.stop, *lost)  # two of them write their snapshots now
    await asyncio.to_thread(carillon.start, *lost)
    archive = ArchiveDirectory(Path(carillon.env["CARILLON_KAFKA_ARCHIVE_DIR"]))
    for role in roles:
        directory = carillon.data / f"{role}-1-of-{SHARDS}"
        copies = StateCopies(archive, directory, noted_log_identity(directory))
        await asyncio.to_thread(copies.save)
    later = await devices_of(carillon, app)
    await server.push(message(app, 1, "copied"), app.secret_key)
    await all_show([*devices, *later], "copied")
    for role, name in zip(roles, lost, strict=True):
        await asyncio.to_thread(carillon.kill, name)
        shutil.rmtree(carillon.data / f"{role}-1-of-{SHARDS}")
    await asyncio.to_thread(carillon.start, *lost)
    after = await server.push(message(app, 6, "after", tag=[[1]]), app.secret_key)
    await all_show([*devices, *later], "after")
    await audited(carillon, after["id"], "command", "audience", "sent", "received")
    for role, name in zip(roles, lost, strict=True):
        assert "the state begins with the copy in the archive" in carillon.output(name).read_text()
        assert "equal" in await asyncio.to_thread(carillon.carillon, "replay", role, "--verify", of=name)
    for device in (*devices, *later):
        await device.close()


@pytest.mark.parametrize(
    "role",
    ["registry", "delivery", *(pytest.param(role, marks=pytest.mark.seeds) for role in ("scheduling", "targeting"))],
)
async def test_nobody_notices_that_a_role_with_a_standby_is_restarted_or_killed(
    carillon: Installation, app: AppCredentials, server: AppServer, role: str
) -> None:
    """A standby takes over, and each request is answered with 0 meanwhile; the messages are sent once."""
    first, standby = f"{role}-0", f"{role}-standby"
    await asyncio.to_thread(carillon.start, standby)
    (device,) = await devices_of(carillon, app, 1)
    legacy = AppServer(carillon.android_url)
    sent: list[str] = []
    seen: list[str] = []
    is_over = asyncio.Event()

    async def use_scheduling() -> None:
        option = {"timed": 2, "send_time_interval": 1}
        assert (await server.push(message(app, 1, sent[-1], option), app.secret_key))["result"] == 0
        page = {"appkey": {"android": app.appkey}, "page_num": 1, "page_size": 5}
        assert (await server.call("POST", "/v2/timedtasklist", page, app.secret_key))["result"] == 0

    async def use_targeting() -> None:
        """Push by a tag that the device has set just before, and has no longer before the next one."""
        assert (await device.request({"type": "add_stags", "stags": [sent[-1]]}))["type"] == "ok"
        pushed = await server.push(message(app, 6, sent[-1], stag=[[sent[-1]]]), app.secret_key)
        assert pushed["result"] == 0
        seen.append((await shown(device))["content"])
        assert (await device.request({"type": "remove_stags", "stags": [sent[-1]]}))["type"] == "ok"

    async def use_registry() -> None:
        """Register a device, and push to an alias that another one has set just before."""
        new = VirtualDevice(carillon.gateway_url, app.appkey)
        await new.connect()
        await new.close()
        assert (await device.request({"type": "set_alias", "alias": sent[-1]}))["type"] == "ok"
        assert (await server.push(message(app, 4, sent[-1], alias=[sent[-1]]), app.secret_key))["result"] == 0
        seen.append((await shown(device))["content"])

    async def use_delivery() -> None:
        """Push to all devices and cancel that push, which delivery has to know by then."""
        pushed = await server.push(message(app, 1, sent[-1]), app.secret_key)
        seen.append((await shown(device))["content"])
        cancel = {"appkey": app.appkey, "msgid": pushed["id"]}
        assert (await legacy.call("DELETE", "/push", cancel, app.secret_key))["result"] == 0

    async def use() -> None:
        uses = {
            "scheduling": use_scheduling,
            "targeting": use_targeting,
            "registry": use_registry,
            "delivery": use_delivery,
        }
        while not is_over.is_set():
            sent.append(f"message {len(sent)}")
            await uses[role]()

    async def owner_changes(end: Callable[..., None], name: str) -> None:
        """End a process; wait until requests have been answered since, and start it again."""
        await asyncio.to_thread(end, name)
        answered = len(sent)
        await until_holds(lambda: len(sent) > answered + 3 * SHARDS)
        await asyncio.to_thread(carillon.start, name)

    def states() -> dict[str, int]:
        """Return how many processes of the shard are in each state, as `carillon status` shows them."""
        shown_now = json.loads(carillon.carillon("status", "--json"))["instances"]
        return Counter(each["state"] for each in shown_now if (each["role"], each["shard"]) == (role, 0))

    assert await asyncio.to_thread(states) == {"owner": 1, "standby": 1}
    using = asyncio.create_task(use())
    changes: list[tuple[Callable[..., None], str]]
    changes = [(carillon.stop, first), (carillon.kill, standby), (carillon.kill, first)]
    for end, name in changes:
        await asyncio.wait([using, asyncio.create_task(owner_changes(end, name))], return_when=asyncio.FIRST_COMPLETED)
        if using.done():
            break
    is_over.set()
    await using
    seen += [(await shown(device))["content"] for _ in sent[len(seen) :]]
    assert sorted(seen) == sorted(sent)
    await device.close()
    await legacy.close()
    await asyncio.to_thread(carillon.stop, standby)


async def test_a_dead_targeting_process_delays_no_unicast_no_cancel_and_no_restart(
    carillon: Installation, app: AppCredentials, server: AppServer
) -> None:
    devices = await devices_of(carillon, app)
    everyone = await server.push(message(app, 1, "before"), app.secret_key)
    await all_show(devices, "before")
    await asyncio.to_thread(carillon.kill, "targeting-1")
    waiting = await server.push(message(app, 6, "by tag", tag=[[1]]), app.secret_key)
    cancelled = await server.push(message(app, 1, "cancelled"), app.secret_key)
    tokens = [str(device.token) for device in devices]
    await server.push(message(app, 5, "unicast", token={"android": tokens}), app.secret_key)
    seen = [[(await shown(device))["content"]] for device in devices]
    for device, contents in zip(devices, seen, strict=True):
        while contents[-1] != "unicast":
            contents.append((await shown(device))["content"])
    delayed = [device for device, contents in zip(devices, seen, strict=True) if contents == ["unicast"]]
    of_dead = [token for token in tokens if partition_of(device_key(app.appkey, token), 8) % 2]
    assert [device.token for device in delayed] == of_dead

    android = AppServer(carillon.android_url)
    for push, result in ((everyone, 0), (cancelled, 0)):
        body = {"appkey": app.appkey, "msgid": push["id"]}
        assert (await android.call("DELETE", "/push", body, app.secret_key))["result"] == result
    await android.close()
    await asyncio.to_thread(carillon.kill, "delivery-1")
    await asyncio.to_thread(carillon.start, "delivery-1")
    await server.push(message(app, 5, "after the restart", token={"android": tokens}), app.secret_key)
    await all_show(devices, "after the restart")
    await asyncio.to_thread(carillon.start, "targeting-1")
    await all_show(delayed, "by tag")
    await server.push(message(app, 5, "last", token={"android": tokens}), app.secret_key)
    await all_show(devices, "last")
    await audited(carillon, waiting["id"], "command", "audience", "sent", "received")
    await audited(carillon, cancelled["id"], "command", "cancel command", "push cancelled")
    for device in devices:
        await device.close()


@pytest.mark.parametrize("shard", [0, pytest.param(1, marks=pytest.mark.seeds)])
def test_the_state_of_each_process_equals_its_replay(carillon: Installation, shard: int) -> None:
    for role in (role for role in REPLAYABLE if role in BACKENDS):  # no accounts run here: they have one instance
        answer = _replayed(carillon, role, f"{role}-{shard}")
        assert answer is None if role == "analytics" else answer["equal"], role


def _replayed(carillon: Installation, role: str, name: str) -> Any:
    """Return the verdict of a replay; None when the command is refused."""
    text = carillon.carillon("replay", role, "--verify", "--json", of=name, check=False)
    return json.loads(text) if text.strip() else None
