"""Owners with epochs, in any interleaving: no command is decided twice, and every reader sees the same facts."""

from collections.abc import Sequence
from random import Random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from protos.runtime.v1.log_pb2 import Meta, Position
from protos.scheduling.v1.scheduling_pb2 import TaskFact, TaskFailed
from services.domain.topics import TASKS, TOPICS
from services.errors import ConflictError
from services.log.port import NewRecord, Partition, Record
from services.process.clock import ManualClock
from services.replica.epochs import Epochs, next_epoch
from services.replica.fencing import Fencing, SupersededError

PARTITION = Partition(TASKS.name, 0)


class Reader:
    """The state that a reader folds from the partition: which process decided each command, and the next offset."""

    def __init__(self) -> None:
        self.epochs = Epochs()
        self.next = 0
        self.decided: dict[int, str] = {}

    def read(self, log: Sequence[Record]) -> None:
        for record in log[self.next :]:
            self.next += 1
            fact = TaskFact.FromString(record.value)
            if self.epochs.admits(record, fact) and fact.HasField("failed"):
                decider = self.decided.setdefault(fact.meta.cause.offset, fact.failed.reason)
                assert decider == fact.failed.reason, "two processes have decided a command"


class Process:
    """A process that decides as a follower does, one append at a time. `disk` is the state that it has committed."""

    def __init__(self, name: str, disk: Reader, random: Random, log: Sequence[Record]) -> None:
        self.name = name
        self.disk = disk
        disk.read(log)
        self.fencing = Fencing("counter", TOPICS, disk.epochs, ManualClock(0), random.getrandbits)
        self.is_owner = False
        self.appending: list[NewRecord] = self.fencing.announce([PARTITION])

    def answered(self, log: Sequence[Record], offset: int) -> None:
        """Go on after the append. SupersededError as a follower raises it; nothing is committed then."""
        new_record, *_ = self.appending
        self.appending = []
        if self.is_owner:
            for start in self.fencing.gaps([new_record], [offset]).values():
                for record in log[start:offset]:
                    self.fencing.check(record)
            self.fencing.advance({PARTITION: offset + 1})
            self.disk.decided[TaskFact.FromString(new_record.value).meta.cause.offset] = self.name
            self.disk.next = offset + 1
        else:
            self.disk.read(log)
            self.fencing.begin({PARTITION: len(log)})
            self.is_owner = True

    def decide(self, commands: int) -> None:
        undecided = next((cause for cause in range(commands) if cause not in self.disk.decided), None)
        if self.is_owner and not self.appending and undecided is not None:
            meta = Meta(epoch=self.fencing.epoch(PARTITION), cause=Position(offset=undecided))
            fact = TaskFact(meta=meta, failed=TaskFailed(reason=self.name))
            self.appending = [NewRecord(*PARTITION, b"", fact.SerializeToString())]


class OwnersMachine(RuleBasedStateMachine):
    """Processes start, are killed and held up; appends are stored late, twice or never."""

    def __init__(self) -> None:
        super().__init__()
        self.log: list[Record] = []
        self.commands = 0
        self.processes: list[Process] = []
        self.disks: list[Reader] = []
        self.on_the_way: list[NewRecord] = []
        self.started = 0
        self.random = Random(1)

    def store(self, new_record: NewRecord) -> int:
        self.log.append(Record(*PARTITION, len(self.log), new_record.key, new_record.value))
        return len(self.log) - 1

    def chosen(self, data: st.DataObject) -> Process:
        return data.draw(st.sampled_from(self.processes))

    @rule()
    def command(self) -> None:
        self.commands += 1

    @precondition(lambda self: len(self.processes) < 4)
    @rule(data=st.data())
    def start(self, data: st.DataObject) -> None:
        """A process starts with an empty disk, or with that of one that has ended."""
        disk = data.draw(st.sampled_from([None, *self.disks]))
        if disk is not None:
            self.disks.remove(disk)
        self.started += 1
        self.processes.append(Process(f"process {self.started}", disk or Reader(), self.random, self.log))

    @precondition(lambda self: self.processes)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        """A process is killed; its append may still be on the way."""
        process = self.chosen(data)
        self.on_the_way += process.appending
        self.remove(process)

    def remove(self, process: Process) -> None:
        self.processes.remove(process)
        self.disks.append(process.disk)

    @precondition(lambda self: self.processes)
    @rule(data=st.data())
    def decide(self, data: st.DataObject) -> None:
        self.chosen(data).decide(self.commands)

    @precondition(lambda self: any(process.appending for process in self.processes))
    @rule(data=st.data(), is_answered=st.booleans(), is_repeated=st.booleans())
    def append(self, data: st.DataObject, is_answered: bool, is_repeated: bool) -> None:
        """The log stores a process's record; without an answer the process appends it again."""
        process = data.draw(st.sampled_from([process for process in self.processes if process.appending]))
        offset = self.store(process.appending[0])
        if is_repeated:
            self.on_the_way += process.appending
        if is_answered:
            try:
                process.answered(self.log, offset)
            except SupersededError:
                self.supersede(process)

    @precondition(lambda self: self.on_the_way)
    @rule(data=st.data())
    def arrive_late(self, data: st.DataObject) -> None:
        """The log stores a repeated record, or one of a process that has been killed."""
        new_record = data.draw(st.sampled_from(self.on_the_way))
        self.on_the_way.remove(new_record)
        self.store(new_record)

    @precondition(lambda self: any(process.is_owner for process in self.processes))
    @rule(data=st.data())
    def read_live(self, data: st.DataObject) -> None:
        process = data.draw(st.sampled_from([process for process in self.processes if process.is_owner]))
        try:
            assert process.fencing.check_live(self.log) == []
        except SupersededError:
            self.supersede(process)

    def supersede(self, process: Process) -> None:
        """Check that a process that knows of its successor commits nothing more, although it may still append."""
        process.decide(self.commands)
        if process.appending:
            with pytest.raises(SupersededError):
                process.answered(self.log, self.store(process.appending[0]))
        self.remove(process)

    @invariant()
    def readers_agree(self) -> None:
        """Check that each process has committed the state that a reader folds up to the same offset."""
        for process in self.processes:
            reader = Reader()
            reader.read(self.log[: process.disk.next])
            assert process.disk.decided == reader.decided
            assert process.disk.epochs.highest() == reader.epochs.highest()

    def teardown(self) -> None:
        """Check that one more process, without faults, decides the remaining commands."""
        last = Process("last", Reader(), self.random, self.log)
        last.answered(self.log, self.store(last.appending[0]))
        for _ in range(self.commands):
            last.decide(self.commands)
            if last.appending:
                last.answered(self.log, self.store(last.appending[0]))
        reader = Reader()
        reader.read(self.log)
        assert reader.decided.keys() == set(range(self.commands))
        assert reader.decided == last.disk.decided


TestOwners = OwnersMachine.TestCase
TestOwners.settings = settings(stateful_step_count=60, deadline=None)


def test_an_epoch_is_above_the_highest_whatever_the_random_bits() -> None:
    highest = 0
    for bits in (0, 2**24 - 1, 0, 5):
        highest, before = next_epoch(highest, lambda count, bits=bits: bits), highest  # type: ignore[misc]
        assert highest > before


def test_an_owner_ends_when_the_log_stores_a_record_where_it_knows_another_one() -> None:
    fencing = Fencing("counter", TOPICS, Epochs(), ManualClock(0), Random(1).getrandbits)
    (announcement,) = fencing.announce([PARTITION])
    fencing.begin({PARTITION: 5})
    assert fencing.gaps([announcement], [5]) == {}
    fencing.advance({PARTITION: 9})
    assert fencing.gaps([announcement], [12]) == {PARTITION: 9}
    with pytest.raises(ConflictError, match=r"ends at offset 7 .* next record to read is 9: the log has gone back"):
        fencing.gaps([announcement], [7])
