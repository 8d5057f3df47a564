"""200 persons are erased under kills: no marked byte is left of them, statistics do not change, replays are equal."""

import asyncio
import contextlib
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import pytest

from carillon.commands.role_calls import SOCKET_NAME
from carillon.roles import REPLAYABLE
from protos.analytics.v1.analytics_pb2 import (
    CATEGORY_BRAND,
    STATISTICS_KIND_BROADCASTS,
    STATISTICS_KIND_USERS,
    TIME_SCOPE_LAST_SEVEN_DAYS,
    USER_KIND_CUMULATIVE,
    AuditPushRequest,
    StatisticsRequest,
    StatisticsResponse,
)
from protos.analytics.v1.analytics_pb2_grpc import AnalyticsServiceStub
from protos.registry.v1.registry_pb2 import ErasePersonRequest, FindAliasesRequest
from protos.registry.v1.registry_pb2_grpc import RegistryServiceStub
from services.errors import NotFoundError, UnavailableError
from services.net.rpc.channel import Channel, connect
from testkit.device import VirtualDevice
from testkit.installation.app_server import AppCredentials, AppServer
from testkit.installation.processes import UNLIMITED_REGISTRATIONS, Installation
from testkit.waiting import until
from tests.journeys.test_push import message, shown
from tests.journeys.test_sealing import marked, sealed_since

if TYPE_CHECKING:
    from protos.analytics.v1.analytics_pb2_grpc import AnalyticsServiceAsyncStub
    from protos.registry.v1.registry_pb2_grpc import RegistryServiceAsyncStub

PERSONS, KEPT = 200, 5
KILLS = 5
AUDITED = 20
AT_ONCE = 8
SEED = 46
BRANDS = ("Acme", "Bolt", "Cove")
IN_CLICKHOUSE = ("analytics", "clickhouse")
"""Directories of the analytics store, whose files are the subject of tests/analytics/test_erasures.py."""

Item = TypeVar("Item")
Done = TypeVar("Done")


class Person(NamedTuple):
    """A person with marked values, and the pushes that were sent to it alone: one came, and one waits."""

    values: Mapping[str, str]
    pushes: Sequence[int]

    @property
    def alias(self) -> str:
        return self.values["alias"]


@pytest.mark.long
@pytest.mark.timeout(900)
async def test_of_persons_erased_under_kills_nothing_is_left_and_no_number_changes(tmp_path: Path) -> None:
    random = Random(SEED)
    installation = Installation(tmp_path / "data", None)
    installation.env |= {**UNLIMITED_REGISTRATIONS, "CARILLON_ERASURE_BATCH_S": "1"}
    with contextlib.closing(installation):
        await asyncio.to_thread(installation.start)
        app = await asyncio.to_thread(installation.create_app)
        await asyncio.to_thread(sealed_since, installation)
        persons = await use(installation, app, random)
        erased, kept = persons[KEPT:], persons[:KEPT]
        async with called(installation) as channel:
            before = await until(lambda: complete_statistics(AnalyticsServiceStub(channel), app.appkey))
        await erase_under_kills(installation, app.appkey, [person.alias for person in erased], random)
        async with called(installation) as channel:
            await until(lambda: are_unknown(RegistryServiceStub(channel), app.appkey, erased))
            analytics = AnalyticsServiceStub(channel)
            assert [await has_content(analytics, person) for person in kept] == [True] * KEPT
            for person in random.sample(erased, AUDITED):
                await until(partial(has_no_content, analytics, person))
            assert await statistics(analytics, app.appkey) == before
        await until(partial(are_done, listing_of_erasures(installation, app.appkey, tmp_path)), 120)
        await asyncio.to_thread(installation.stop)
        assert files_with(installation.data, kept).keys() == {value for each in kept for value in each.values.values()}
        left = files_with(installation.data, erased)
        assert not left, left
        for role in REPLAYABLE:
            assert "equal" in await asyncio.to_thread(installation.carillon, "replay", role, "--verify"), role


@contextlib.asynccontextmanager
async def called(installation: Installation) -> AsyncIterator[Channel]:
    """Yield a channel to the roles of the process."""
    channel = connect(f"unix:{installation.data / SOCKET_NAME}")
    try:
        yield channel
    finally:
        await channel.close()


async def use(installation: Installation, app: AppCredentials, random: Random) -> list[Person]:
    """Register the devices of the persons, and send pushes to each of them and to all."""
    server = AppServer(installation.v2_url)

    async def push(scope: int, content: str, **target: Any) -> int:
        answer = await server.push(message(app, scope, content, **target), app.secret_key)
        assert answer["result"] == 0, answer
        return int(answer["id"])

    async def register(brand: str) -> tuple[VirtualDevice, dict[str, str]]:
        values = marked()
        del values["everyone"]
        attributes = {"model": values["model"], "brand": brand}
        device = VirtualDevice(installation.gateway_url, app.appkey, attributes=attributes)
        await device.connect()
        await device.request({"type": "set_alias", "alias": values["alias"]})
        await device.request({"type": "add_stags", "stags": [values["tag"]]})
        return device, {**values, "token": str(device.token)}

    async def address(device: VirtualDevice, values: dict[str, str]) -> Person:
        sent = await push(4, values["content"], alias=[values["alias"]])
        while (await shown(device))["content"] != values["content"]:
            pass
        await device.close()
        return Person(values, [sent, await push(4, values["content"], alias=[values["alias"]])])

    devices = await each([random.choice(BRANDS) for _ in range(PERSONS + KEPT)], register)
    await push(1, "to everybody")
    for device, _ in devices:
        assert (await shown(device))["content"] == "to everybody"
    persons = await each(devices, lambda one: address(*one))
    await server.close()
    return persons


async def each(items: Collection[Item], work: Callable[[Item], Awaitable[Done]]) -> list[Done]:
    """Return what the work has made of each item, a few at a time."""
    limit = asyncio.Semaphore(AT_ONCE)

    async def limited(item: Item) -> Done:
        async with limit:
            return await work(item)

    return list(await asyncio.gather(*map(limited, items)))


async def erase_under_kills(installation: Installation, appkey: str, aliases: Sequence[str], random: Random) -> None:
    """Erase the persons, some at once; kill the process in the midst of it, start it, and go on with the others."""
    left = list(aliases)
    for _ in range(KILLS):
        answers = random.randrange(1, PERSONS // (KILLS + 1))
        left = await erase_until_killed(installation, appkey, left, answers)
        await asyncio.to_thread(installation.start)
    assert not await erase_until_killed(installation, appkey, left, None)


async def erase_until_killed(
    installation: Installation, appkey: str, aliases: Sequence[str], answers: int | None
) -> list[str]:
    """Erase persons until there were this many answers, then kill the process; return who has no answer yet."""
    erased: set[str] = set()
    is_killed = asyncio.Event()

    async def erase(alias: str) -> None:
        if is_killed.is_set():
            return
        with contextlib.suppress(UnavailableError):
            with contextlib.suppress(NotFoundError):  # a kill came between the fact and its answer
                await registry.ErasePerson(ErasePersonRequest(appkey=appkey, alias=alias))
            erased.add(alias)
        if len(erased) == answers and not is_killed.is_set():
            is_killed.set()
            await asyncio.to_thread(installation.kill)

    async with called(installation) as channel:
        registry = RegistryServiceStub(channel)
        await each(aliases, erase)
    assert answers is None or is_killed.is_set()
    return [alias for alias in aliases if alias not in erased]


def listing_of_erasures(installation: Installation, appkey: str, directory: Path) -> Callable[[], str]:
    """Return a function that lists the erasures, as an officer of the team does."""
    installation.carillon("team", "add", "News")
    installation.carillon("team", "give-app", "News", appkey)
    made = json.loads(installation.carillon("token", "create", "News", "officer", "--role", "administrator", "--json"))
    (directory / "token").write_text(made["token"])
    elsewhere = ("--url", installation.console_url(), "--token-file", str(directory / "token"))
    return partial(installation.carillon, *elsewhere, "person", "erasures", "--app", appkey, "--json")


async def are_done(listing: Callable[[], str]) -> bool:
    states = [json.loads(line)["state"] for line in (await asyncio.to_thread(listing)).splitlines()]
    return set(states) == {"done"} and len(states) >= PERSONS


async def are_unknown(registry: "RegistryServiceAsyncStub", appkey: str, persons: Sequence[Person]) -> bool:
    asked = FindAliasesRequest(appkey=appkey, aliases=[person.alias for person in persons], all=True)
    return not any(found.devices for found in (await registry.FindAliases(asked)).aliases)


async def has_content(analytics: "AnalyticsServiceAsyncStub", person: Person) -> bool:
    """Return whether the audits of the pushes to a person have a value of it."""
    audits = [await analytics.AuditPush(AuditPushRequest(msgid=push)) for push in person.pushes]
    return any(value.encode() in audit.SerializeToString() for audit in audits for value in person.values.values())


async def has_no_content(analytics: "AnalyticsServiceAsyncStub", person: Person) -> bool:
    return not await has_content(analytics, person)


async def statistics(analytics: "AnalyticsServiceAsyncStub", appkey: str) -> list[StatisticsResponse]:
    """Return the numbers of users, of users by a value that devices report, and of the push to all."""
    scope: dict[str, Any] = {"appkey": appkey, "scope": TIME_SCOPE_LAST_SEVEN_DAYS}
    users = {**scope, "kind": STATISTICS_KIND_USERS, "user_kind": USER_KIND_CUMULATIVE}
    asked = (
        StatisticsRequest(**users),
        StatisticsRequest(**users, category=CATEGORY_BRAND, info="all"),
        StatisticsRequest(appkey=appkey, kind=STATISTICS_KIND_BROADCASTS),
    )
    return [await analytics.Statistics(request) for request in asked]


async def complete_statistics(analytics: "AnalyticsServiceAsyncStub", appkey: str) -> list[StatisticsResponse] | None:
    """Return the statistics once all devices have said that they showed the push to all."""
    found = await statistics(analytics, appkey)
    return found if [row.shown for row in found[2].broadcasts] == [PERSONS + KEPT] else None


def files_with(data: Path, persons: Sequence[Person]) -> dict[str, set[str]]:
    """Return by marked value the files that have it, but those of the analytics store."""
    marks = {value for person in persons for value in person.values.values()}
    tokens = "|".join(re.escape(person.values["token"]) for person in persons)
    wanted = re.compile(f"(?:alias|tag|model|content)[0-9a-f]{{32}}|{tokens}".encode())
    found: dict[str, set[str]] = {}
    for file in (file for file in data.rglob("*") if file.is_file()):
        if (path := file.relative_to(data)).parts[0] not in IN_CLICKHOUSE:
            for mark in marks & {each.decode() for each in wanted.findall(file.read_bytes())}:
                found.setdefault(mark, set()).add(str(path))
    return found
