"""Whatever numbers a record holds, the role that reads it goes on, now and after a restart, and a replay agrees.

A role that was compromised may append to the topics that it writes; so may a bug. What no column or bitmap takes is a
dead letter.
"""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from analytics.ingestion.attributes import AttributeHistory, CountedAttributes
from analytics.ingestion.connections.spans import LatestConnections
from analytics.ingestion.known_ids import BroadcastIds, KnownDevices
from analytics.ingestion.translation import RecordTranslator, TranslationContext
from services.accounts import main as accounts
from services.accounts.settings import AccountsSettings
from services.delivery import main as delivery
from services.delivery.settings import DeliverySettings
from services.domain.accounts import AccountDirectory
from services.domain.apps import AppDirectory
from services.domain.master_key import MasterKey
from services.domain.role import RoleContext
from services.domain.topics import TOPICS, decode
from services.log.port import NewRecord, Partition, Record
from services.log.sqlite.log import SqliteLog
from services.net.rpc.local import LocalServer
from services.process.clock import ManualClock
from services.process.metrics import DEAD_LETTERS
from services.registry import main as registry
from services.registry.settings import RegistrySettings
from services.replica.epochs import Epochs
from services.replica.instances import InstanceDirectory
from services.replica.peers import Peers
from services.replica.replay import ReplaySource
from services.replica.status_board import StatusBoard, StatusBoardFollower
from services.scheduling import main as scheduling
from services.scheduling.settings import SchedulingSettings
from services.targeting import main as targeting
from services.targeting.settings import TargetingSettings
from testkit.faults.crashing_log import records_of
from testkit.services import running_services
from testkit.waiting import run_ready_tasks
from tests.services.extreme_values import OWNERS_EPOCH, T0_MS, Extreme, extremes

PARTITIONS = 2
READ = 1
"""The partition that gets the records, of topics with several."""

CHUNK = 45
"""Records that are appended at once: a hundred dead letters end a role, until its next start."""

ROLES: dict[str, tuple[Any, Any, Sequence[str]]] = {
    "registry": (registry, RegistrySettings, ("device-commands", "devices", "sessions")),
    "targeting": (targeting, TargetingSettings, ("devices", "sessions")),
    "scheduling": (scheduling, SchedulingSettings, ("task-commands", "tasks")),
    "accounts": (accounts, AccountsSettings, ("accounts", "log-ins", "drafts")),
    "delivery": (delivery, DeliverySettings, ("push-commands", "pushes", "deliveries")),
}
CASES = [(role, topic) for role, (_, _, topics) in ROLES.items() for topic in topics]


class Reader:
    """A role on one directory and log."""

    def __init__(self, role: str, directory: Path, log: SqliteLog) -> None:
        self.name = role
        self.main, settings, _ = ROLES[role]
        self.settings = settings(data_dir=str(directory), partitions=PARTITIONS, timezone="UTC")
        self.directory = directory
        self.log = log

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[Any]:
        """Run the role; what ended one of its services is raised."""
        apps, keys = AppDirectory(self.log), MasterKey(bytes(32)).only(self.main.ROLE.keys)
        names = ("registry", "targeting", "scheduling", "accounts", "delivery")
        peers = Peers({name: [LocalServer().channel()] for name in names}, TOPICS)
        clock = ManualClock(T0_MS)
        role = self.main.build(self.settings, RoleContext(self.log, clock, peers, keys, apps))
        async with running_services([apps, *role.services]):
            await self.caught_up(role)
            yield role
            await self.caught_up(role)
            clock.move(3600)
            for _ in range(20):
                await run_ready_tasks()

    async def caught_up(self, role: Any) -> None:
        """Return once the role has applied all that the partitions hold which it follows."""
        async with asyncio.timeout(60):
            for followed in role.followers:
                while not followed.applied.has_all(await self.log.ends(followed.partitions)):
                    await asyncio.sleep(0.005)

    async def epoch(self, partition: Partition) -> int:
        """Return the epoch of the partition's present owner."""
        return max((decode(record).meta.epoch for record in await records_of(self.log, partition)), default=0)

    def dead_letters(self) -> list[str]:
        file = self.directory / "dead-letters" / f"{self.name}.jsonl"
        return [json.loads(line)["error"] for line in file.read_text().splitlines()] if file.exists() else []


def counted(role: str) -> float:
    """Return how many dead letters the followers of a role have counted."""
    return sum(float(DEAD_LETTERS.labels(name)._value.get()) for name in (role, f"{role}-aliases"))


def chunks(found: Sequence[Extreme]) -> list[Sequence[Extreme]]:
    return [found[at : at + CHUNK] for at in range(0, len(found), CHUNK)]


@pytest.mark.parametrize(("role", "topic"), CASES, ids=[f"{role}-{topic}" for role, topic in CASES])
async def test_a_role_goes_on_behind_extreme_numbers(role: str, topic: str, tmp_path: Path) -> None:
    log = SqliteLog(tmp_path / "log.sqlite", TOPICS, partitions=PARTITIONS)
    reader = Reader(role, tmp_path, log)
    partition = Partition(topic, 0 if TOPICS[topic].single else READ)
    before = counted(role)
    async with reader.running():
        pass
    for number, chunk in enumerate(chunks(extremes(topic, partition.number))):
        epoch = await reader.epoch(partition)
        for each in chunk:
            if each.message.meta.epoch == OWNERS_EPOCH:
                each.message.meta.epoch = epoch
        new_records = [
            NewRecord(*partition, f"{number}/{place}".encode(), each.message.SerializeToString())
            for place, each in enumerate(chunk)
        ]
        names = [each.name for each in chunk]
        try:
            if number % 2:  # what a role reads at its start, and what comes while it runs
                await log.append(new_records)
                async with reader.running():
                    pass
            else:
                async with reader.running():
                    await log.append(new_records)
        except BaseException as error:
            raise AssertionError(f"{role} ended behind one of {names}") from error
    assert counted(role) - before == len(reader.dead_letters())
    await verified(reader)
    await log.close()


async def verified(reader: Reader) -> None:
    """Check that a replay of the whole log builds the state that the role has."""
    support = reader.main.ROLE.replay
    ends = await reader.log.ends(
        [Partition(t.name, n) for t in TOPICS.values() for n in range(t.partitions(PARTITIONS))]
    )
    live, rebuilt = await support.verify(reader.settings, ReplaySource(reader.log, ends))
    assert live == rebuilt


@pytest.mark.parametrize("topic", ["apps", "accounts", "instances", "processes"])
async def test_what_follows_a_topic_in_memory_goes_on_behind_extreme_numbers(topic: str, tmp_path: Path) -> None:
    log = SqliteLog(tmp_path / "log.sqlite", TOPICS, partitions=PARTITIONS)
    partition = Partition(topic, 0)
    for number, each in enumerate(extremes(topic, 0)):
        key = f"{number}".encode()
        await log.append([NewRecord(*partition, key, each.message.SerializeToString())])
    board = StatusBoard(ManualClock(T0_MS))
    readers: dict[str, Any] = {
        "apps": AppDirectory(log),
        "accounts": AccountDirectory(log),
        "instances": InstanceFollower(log),
        "processes": StatusBoardFollower(log, board),
    }
    async with running_services([readers[topic]]):
        last: Any = TOPICS[topic].envelope()
        last.meta.event_id = b"last"
        await log.append([NewRecord(*partition, b"last", last.SerializeToString())])
        for _ in range(20):
            await asyncio.sleep(0.01)
    await log.close()


class InstanceFollower:
    """The directory of instances as a service."""

    name = "instances"

    def __init__(self, log: SqliteLog) -> None:
        self._log = log

    async def run(self, ready: asyncio.Event) -> None:
        await InstanceDirectory("own").run(self._log, ready.set)


@pytest.mark.parametrize("topic", [topic for topic in TOPICS if topic not in ("instances", "processes", "message-ids")])
def test_analytics_translates_every_record_or_says_that_it_is_a_dead_letter(topic: str) -> None:
    """One bad record takes no other one of its batch with it."""
    context = TranslationContext(
        AttributeHistory(CountedAttributes()), BroadcastIds(), KnownDevices(), LatestConnections(), Epochs()
    )
    translator = RecordTranslator(context, "")
    records = [
        Record(topic, 0, offset, b"1/t", each.message.SerializeToString())
        for offset, each in enumerate(extremes(topic, 0))
    ]
    dead: list[Record] = []
    translator.tables(records, lambda record, error: dead.append(record))
    assert len(dead) < len(records)
