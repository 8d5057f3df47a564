"""The end of the archive: a record goes once a copy of each state that is old enough has applied it."""

from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import pytest

from analytics.settings import AnalyticsSettings
from carillon.archive import archive_days
from services.domain.settings import Settings, SettingsError, load
from services.domain.topics import REFUSALS, TOPICS, archived_partitions
from services.errors import CarillonError, ConflictError, UnavailableError
from services.log.archive.archiver import DAY_MS, Archiver
from services.log.archive.directory import ArchiveDirectory, copy_archive
from services.log.archive.log import ArchivedLog
from services.log.identity import check_log_identity
from services.log.port import NewRecord, Partition
from services.log.sqlite.log import SqliteLog
from services.process.clock import ManualClock
from services.replica.archive_end import ArchiveEnd, StateBases
from tests.services.replica.tally_role import COMMANDS, Role, settled, tally, write

NOW_MS = 1_790_000_000_000
DAYS = 10
UNREAD = Partition(REFUSALS.name, 0)


class Machine:
    """A log with its archive, and the state of one role, in one directory; the clock moves by days."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.clock = ManualClock(NOW_MS)
        self.archive = ArchiveDirectory(path / "archive")
        self.log = ArchivedLog(SqliteLog(path / "log.db", TOPICS), self.archive)
        self.state = path / "registry"
        check_log_identity(self.state, self.log, "registry")
        self.bases = StateBases(self.archive, "registry", self.state, TOPICS, self.log.identity)
        self.needed: Mapping[Partition, int] = {}
        self.end = ArchiveEnd(
            *(self.archive, self.log, self.clock, [*COMMANDS, UNREAD], [self.bases]),
            {COMMANDS[0].topic: DAYS, UNREAD.topic: DAYS},
            lambda: [self.needed],
        )

    async def work(self, *tokens: str) -> dict[str, int]:
        """Have the role decide a command for each token, and archive all that may go there; return its counts."""
        role = Role(self.log, self.state)
        await role.is_ready()
        await settled(role, await write(self.log, *tokens))
        counts = tally(role.store)
        await role.stop()
        await self.log.append([NewRecord(*UNREAD, b"", b"")] * len(tokens))
        await Archiver(self.log, self.clock, [*COMMANDS, UNREAD], DAY_MS, segment_bytes=1).archive_old()
        return counts

    async def later(self, days: float) -> int:
        """Move the clock, and return how many segments go then."""
        self.clock.move(days * DAY_MS / 1000)
        return await self.end.remove_old()


@pytest.fixture
async def machine(tmp_path: Path) -> AsyncIterator[Machine]:
    machine = Machine(tmp_path)
    yield machine
    await machine.log.close()


async def test_records_go_once_an_old_copy_has_applied_them(machine: Machine) -> None:
    counts = await machine.work(*"abcabc")
    assert await machine.later(0) == 0
    assert [base.saved_ms for base in machine.bases.all()] == [NOW_MS]
    counts = await machine.work(*"abcabc")
    kept = {partition: machine.archive.names(partition) for partition in [*COMMANDS, UNREAD]}
    assert await machine.later(9.9) == 0
    assert {partition: machine.archive.names(partition) for partition in kept} == kept
    assert await machine.later(0.1) > 0
    begin = machine.archive.begin()
    assert begin.removed_before_ms == NOW_MS
    assert begin.offsets == {**dict.fromkeys(COMMANDS, 2), UNREAD: 6}
    assert await machine.log.begins(COMMANDS) == dict.fromkeys(COMMANDS, 2)
    assert await machine.later(0) == 0, "what is gone is not removed again"
    with pytest.raises(ConflictError, match="no record from before 2 any more: those are from before 2026-09-21"):
        await machine.log.open({COMMANDS[0]: 1})

    first = machine.bases.first_after(begin)
    assert first.saved_ms == NOW_MS
    rebuilt = machine.path / "rebuilt"
    machine.bases.unpack(first, rebuilt)
    role = Role(machine.log, rebuilt)
    await role.is_ready()
    assert tally(role.store) == counts
    await role.stop()


async def test_copies_are_saved_now_and_then_and_do_not_pile_up(machine: Machine) -> None:
    for _ in range(60):
        await machine.work("a")
        await machine.later(1)
        oldest = machine.bases.all()[0]
        assert machine.clock.now_ms() - oldest.saved_ms <= (DAYS + 4) * DAY_MS
        assert len(machine.bases.all()) <= 6
    assert (await machine.log.begins([COMMANDS[0]]))[COMMANDS[0]] > 40
    await machine.later(3 * DAYS)
    await machine.later(DAYS)
    assert not machine.archive.names(COMMANDS[0])
    await machine.work("a", "a", "a", "a")
    assert machine.archive.names(COMMANDS[0]), "archiving goes on where all segments are gone"


async def test_what_another_reader_needs_stays(machine: Machine) -> None:
    await machine.work(*"abcabc")
    await machine.later(0)
    machine.needed = {COMMANDS[0]: 1}
    await machine.later(DAYS)
    assert machine.archive.begin().offsets == {COMMANDS[0]: 1, COMMANDS[1]: 1, COMMANDS[2]: 1, UNREAD: 5}
    machine.needed = {}
    await machine.work(*"abcabc")
    await machine.later(DAYS)
    assert machine.archive.begin().offsets[COMMANDS[0]] == 2, "the copy has not applied more"
    await machine.later(DAYS)
    assert machine.archive.begin().offsets[COMMANDS[0]] == 3


async def test_a_removal_that_was_interrupted_is_ended_by_the_next(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    await machine.work(*"abcabcabc")
    await machine.later(0)
    before = machine.archive.names(COMMANDS[2])
    with monkeypatch.context() as broken:
        removed: list[Path] = []

        def fail_at_last(archive: ArchiveDirectory, path: Path) -> None:
            if len(removed) == 3:
                raise UnavailableError("the disk is away")
            removed.append(path)
            path.unlink()

        broken.setattr(ArchiveDirectory, "_remove", fail_at_last)
        with pytest.raises(UnavailableError):
            await machine.later(DAYS)
    assert machine.archive.begin().offsets[COMMANDS[2]] == 2
    assert machine.archive.names(COMMANDS[2]) == before
    assert await machine.later(0) > 0
    assert not machine.archive.names(COMMANDS[2])
    assert machine.bases.first_after(machine.archive.begin())


async def test_a_copy_of_the_archive_has_what_states_begin_with(machine: Machine, tmp_path: Path) -> None:
    await machine.work(*"abcabc")
    await machine.later(0)
    await machine.work(*"abcabc")
    await machine.later(DAYS)
    begins = await machine.log.live.begins(COMMANDS)
    assert copy_archive(machine.archive.path, tmp_path / "backup", begins) > 0
    copied = ArchiveDirectory(tmp_path / "backup")
    assert copied.begin() == machine.archive.begin()
    assert copied.file_names() == machine.archive.file_names()
    machine.archive.remove_file("begin.json")
    with pytest.raises(CarillonError, match="lacks records of device-commands/0"):
        copy_archive(machine.archive.path, tmp_path / "other", begins)


async def test_without_a_copy_of_its_state_a_role_says_what_to_do(machine: Machine) -> None:
    await machine.work(*"abcabc")
    await machine.later(0)
    await machine.later(DAYS)
    for name in machine.archive.file_names():
        if name != "begin.json":
            machine.archive.remove_file(name)
    with pytest.raises(
        ConflictError, match="no copy of the state of registry from then on: put its folder states back"
    ):
        machine.bases.first_after(machine.archive.begin())


async def test_each_topic_has_an_end_of_its_own(tmp_path: Path) -> None:
    """The copies of states are no older than the shortest one asks for; what they had applied is known for longer."""
    machine = Machine(tmp_path)
    ends = {COMMANDS[0].topic: 40, UNREAD.topic: 4}
    machine.end = ArchiveEnd(*(machine.archive, machine.log, machine.clock, [*COMMANDS, UNREAD], [machine.bases]), ends)
    for _ in range(50):
        await machine.work("a")
        await machine.later(1)
        assert len(list((machine.archive.path / "states").glob("*.tar.gz"))) <= 6
    assert len(machine.bases.all()) <= 42
    begins = await machine.log.begins([COMMANDS[0], UNREAD])
    assert begins[UNREAD] >= 44
    assert 4 <= begins[COMMANDS[0]] <= 10
    await machine.log.close()


def test_classes_of_data_end_in_the_archive_too() -> None:
    def days(**env: str) -> Mapping[str, int]:
        return archive_days(load(AnalyticsSettings, {f"CARILLON_{name}": value for name, value in env.items()}))

    assert days() == {}
    assert days(CONTENT_DAYS="90") == dict.fromkeys(("push-commands", "task-commands", "tasks", "drafts"), 90)
    assert days(CONTENT_DAYS="5")["tasks"] == 36, "they come into the archive after 35 days"
    all_ends = days(ARCHIVE_DAYS="800", SESSION_DAYS="100", AUDIT_DAYS="900")
    assert (all_ends["sessions"], all_ends["log-ins"], all_ends["deliveries"]) == (100, 800, 800)
    assert all_ends.keys() == {partition.topic for partition in archived_partitions(1)}


@pytest.mark.parametrize(
    ("env", "told"),
    [
        ({"ARCHIVE_DAYS": "35"}, "CARILLON_ARCHIVE_DAYS is 35: use more than CARILLON_LOG_DAYS"),
        ({"ARCHIVE_DAYS": "0"}, "CARILLON_ARCHIVE_DAYS is '0': use a whole number >= 2"),
        ({"ARCHIVE_DAYS": "400", "KAFKA_BOOTSTRAP": "kafka:9092"}, "only the archive of the embedded log"),
    ],
)
def test_settings_that_cannot_be_kept_are_refused(env: Mapping[str, str], told: str) -> None:
    with pytest.raises(SettingsError, match=told):
        load(Settings, {f"CARILLON_{name}": value for name, value in env.items()})
    assert load(Settings, {"CARILLON_ARCHIVE_DAYS": ""}).archive_days is None
