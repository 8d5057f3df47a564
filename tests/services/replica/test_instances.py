"""Which instance owns a shard: decided from the records of topic `instances` alone, in any interleaving."""

from itertools import count

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from protos.runtime.v1.instances_pb2 import InstanceAlive, InstanceFact, InstanceLeft
from protos.runtime.v1.log_pb2 import Meta
from services.replica.instances import ABSENT_AFTER, MAX_ENDED, MAX_INSTANCES, Instances

_numbers = count(1)


def alive(instance: str, *, epoch: int = 0, caught_up: bool = True, place: str = "", shard: int = 0) -> InstanceFact:
    announced = InstanceAlive(
        role="r", shard=shard, address=f"{instance}:1", place=place, caught_up=caught_up, epoch=epoch
    )
    return InstanceFact(meta=Meta(event_id=next(_numbers).to_bytes(4, "big")), instance=instance, alive=announced)


def again(instance: str, times: int) -> list[InstanceFact]:
    """Return repeated records of a standby, in which nothing has changed."""
    return [alive(instance) for _ in range(times)]


def left(instance: str) -> InstanceFact:
    return InstanceFact(instance=instance, left=InstanceLeft())


def seen_by(own: str, *facts: InstanceFact) -> Instances:
    instances = Instances(own)
    for offset, fact in enumerate(facts):
        instances.apply(fact, offset)
    return instances


def owner(instances: Instances) -> str:
    found = instances.owner("r", 0)
    return found.id if found else ""


def test_the_owner_is_the_one_with_the_highest_epoch() -> None:
    assert owner(seen_by("", alive("a", epoch=5), alive("b", epoch=9), alive("a", epoch=5))) == "b"
    assert owner(seen_by("", alive("b", epoch=9), left("b"), alive("b", epoch=9), alive("a"))) == ""
    assert owner(seen_by("", alive("a", epoch=5, shard=1))) == ""


def test_late_records_of_ended_instances_are_ignored_and_only_the_last_of_these_are_remembered() -> None:
    ended = [f"ended-{number}" for number in range(MAX_ENDED + 1)]
    instances = seen_by("", *(fact for each in ended for fact in (alive(each, epoch=5), left(each))))
    for late in ended[1:]:
        instances.apply(alive(late, epoch=9))
    assert owner(instances) == ""
    assert len(instances._ended) == MAX_ENDED


def test_of_instances_that_ended_without_a_word_the_longest_silent_are_forgotten_and_never_ones_own() -> None:
    silent = [alive(f"silent-{number}", shard=1) for number in range(MAX_INSTANCES)]
    instances = seen_by("own", alive("own"), alive("a", epoch=5), *silent[1:], alive("a", epoch=5), silent[0])
    assert len(instances.all()) == MAX_INSTANCES
    assert {"own", "a", "silent-0"} <= {each.id for each in instances.all()}


def test_a_standby_waits_while_the_owner_is_present() -> None:
    owner, own = alive("z", epoch=5), alive("a")
    enough, too_few = again("a", ABSENT_AFTER), again("a", ABSENT_AFTER - 1)
    assert not seen_by("a", own, owner, *enough, owner, *too_few).is_elected()
    assert seen_by("a", own, owner, *enough).is_elected()
    assert seen_by("a", own, owner, left("z")).is_elected()


def test_only_records_that_are_written_at_intervals_show_that_an_owner_has_ended() -> None:
    """A lease of the owner has ended before, because such records are an interval apart. Others are not."""
    owner, own, too_few = alive("z", epoch=5), alive("a"), again("a", ABSENT_AFTER - 1)
    repeated = [record for record in too_few for _ in range(3)]
    assert not seen_by("a", own, owner, *repeated).is_elected()
    news = [alive("a", caught_up=False), alive("a"), alive("a", caught_up=False), alive("a")]
    assert not seen_by("a", own, owner, *too_few, *news).is_elected()
    assert seen_by("a", own, owner, *too_few, *news, alive("a")).is_elected()


def test_an_owner_answers_once_the_former_one_knows_of_it_or_has_ended() -> None:
    former, own = alive("z", epoch=5), alive("a", epoch=9)
    assert not seen_by("a", former, alive("a")).is_sole_owner
    assert not seen_by("a", former, alive("a"), own, former).is_sole_owner
    for end in ([alive("z")], [left("z")], [alive("a", epoch=9) for _ in range(ABSENT_AFTER)]):
        assert seen_by("a", former, alive("a"), own, *end).is_sole_owner
    assert seen_by("z", former, alive("a")).is_sole_owner


def test_an_owner_is_superseded_also_by_one_that_has_ended_since() -> None:
    own, successor = alive("a", epoch=5), alive("z", epoch=9)
    for superseded in (
        seen_by("a", own, successor),
        seen_by("a", own, successor, left("z")),
        seen_by("a", own, successor, left("z"), alive("a", epoch=5)),
        seen_by("a", successor, own),
    ):
        assert (superseded.is_superseded, superseded.is_elected(), superseded.is_sole_owner) == (True, False, False)
    stands_by = seen_by("a", own, successor, left("z"), alive("a"))
    assert (stands_by.is_superseded, stands_by.is_elected()) == (False, True)
    assert not seen_by("a", own, alive("z", epoch=9, shard=1)).is_superseded


def test_the_standby_that_caught_up_first_takes_over() -> None:
    a, b = alive("a"), alive("b")
    assert [seen_by(own, a, b).is_elected() for own in "abc"] == [True, False, False]
    assert [seen_by(own, b, a, b).is_elected() for own in "abc"] == [False, True, False]
    assert [seen_by(own, b, a, b, alive("b", caught_up=False), b).is_elected() for own in "ab"] == [True, False]
    assert seen_by("b", alive("a", caught_up=False), b).is_elected()
    assert not seen_by("b", alive("a"), alive("b", caught_up=False)).is_elected()
    assert seen_by("b", b, a, *again("b", ABSENT_AFTER)).is_elected()


def test_the_instance_that_caught_up_first_is_known_although_its_record_was_compacted() -> None:
    former = alive("a")
    former.alive.caught_up_offset = 7
    instances = Instances("b")
    for offset, fact in ((9, alive("b")), (12, former)):
        instances.apply(fact, offset)
    assert not instances.is_elected()


@example([("b", True), ("b", False), ("a", True), ("a", False)])
@given(st.lists(st.tuples(st.sampled_from("abc"), st.booleans()), max_size=40))
def test_of_instances_that_start_together_only_one_is_ever_elected(steps: list[tuple[str, bool]]) -> None:
    """The instances announce that they have caught up, and read the log, in any order; at most one may be elected."""
    log: list[InstanceFact] = []
    views = {each: Instances(each) for each in "abc"}
    read = dict.fromkeys(views, 0)
    elected = set()
    for instance, speaks in steps:
        if speaks and sum(fact.instance == instance for fact in log) <= ABSENT_AFTER:
            log.append(alive(instance))
        elif not speaks:
            for offset in range(read[instance], len(log)):
                views[instance].apply(log[offset], offset)
            read[instance] = len(log)
            elected |= {instance} if views[instance].is_elected() else set()
    assert len(elected) <= 1


def test_a_start_in_the_place_of_an_owner_does_not_wait_for_it() -> None:
    """Only one process runs in a place, so the former one has ended, although its records may still arrive."""
    killed, again = alive("z", epoch=5, place="disk 1"), alive("b", place="disk 1")
    assert seen_by("b", killed, again).is_elected()
    assert seen_by("b", killed, again, killed).is_elected()
    assert not seen_by("b", killed, alive("b", place="disk 2")).is_elected()


class InstancesMachine(RuleBasedStateMachine):
    """Instances that announce themselves, read the log at different times, stop and are killed."""

    def __init__(self) -> None:
        super().__init__()
        self.log: list[InstanceFact] = []
        self.views: dict[str, Instances] = {}
        self.read: dict[str, int] = {}
        self.epochs: dict[str, int] = {}
        self.last_epoch = 0
        self.started = 0

    def say(self, instance: str) -> None:
        self.log.append(alive(instance, epoch=self.epochs[instance]))

    def catch_up(self, instance: str) -> None:
        for fact in self.log[self.read[instance] :]:
            self.views[instance].apply(fact)
        self.read[instance] = len(self.log)

    def take_turn(self, instance: str) -> None:
        """Own the shard under a higher epoch, as a follower does that is elected."""
        if self.views[instance].is_elected() and not self.epochs[instance]:
            self.last_epoch += 1
            self.epochs = dict.fromkeys(self.epochs, 0) | {instance: self.last_epoch}
            self.say(instance)

    @precondition(lambda self: len(self.views) < 4)
    @rule(number=st.integers(0, 99))
    def start(self, number: int) -> None:
        self.started += 1
        instance = f"{number} {self.started}"
        self.views[instance], self.read[instance], self.epochs[instance] = Instances(instance), 0, 0

    @precondition(lambda self: self.views)
    @rule(data=st.data(), stops=st.booleans())
    def end(self, data: st.DataObject, stops: bool) -> None:
        instance = data.draw(st.sampled_from(sorted(self.views)))
        del self.views[instance], self.epochs[instance]
        if stops:
            self.log.append(left(instance))

    @precondition(lambda self: self.views)
    @rule(data=st.data(), speaks=st.booleans())
    def live_on(self, data: st.DataObject, speaks: bool) -> None:
        instance = data.draw(st.sampled_from(sorted(self.views)))
        if speaks:
            self.say(instance)
        self.catch_up(instance)
        self.take_turn(instance)

    def teardown(self) -> None:
        """Once all instances announce themselves and read the log, one of them owns the shard and stays its owner."""
        owners = []
        for _ in range(3 * ABSENT_AFTER):
            for instance in self.views:
                self.say(instance)
            for instance in self.views:
                self.catch_up(instance)
                self.take_turn(instance)
            owners.append([instance for instance, epoch in self.epochs.items() if epoch])
        if self.views:
            assert len(owners[-1]) == 1
            assert owners[-1] == owners[-ABSENT_AFTER]


TestInstances = InstancesMachine.TestCase
TestInstances.settings = settings(stateful_step_count=40, deadline=None)


def test_a_forged_owner_displaces_the_real_one_until_it_has_been_silent() -> None:
    """Nobody repeats the record, so it is absent for its shard's instances, and for callers, as one that was killed."""
    forged = alive("forged", epoch=(1 << 24) - 1)
    for own in ("a", ""):
        seen = seen_by(own, alive("a", epoch=5), forged)
        assert owner(seen) == "forged"
        for fact in [alive("a", epoch=0), *again("a", ABSENT_AFTER)]:
            seen.apply(fact, 2)
        assert owner(seen) == ""
        seen.apply(alive("a", epoch=9), 3)
        assert owner(seen) == "a"
        assert not seen.is_superseded


def test_epochs_that_no_owner_can_have_are_refused() -> None:
    seen = seen_by("a", alive("a", epoch=5))
    with pytest.raises(ValueError, match="counts more owners"):
        seen.apply(alive("forged", epoch=(1 << 64) - 1), 1)
    late = alive("forged")
    late.alive.caught_up_offset = 2
    with pytest.raises(ValueError, match="behind its own record"):
        seen.apply(late, 1)
    assert (owner(seen), seen.is_superseded) == ("a", False)


def test_an_instance_that_somebody_else_has_said_to_have_ended_counts_again() -> None:
    seen = seen_by("", alive("a", epoch=5), left("a"), alive("a", epoch=5))
    assert owner(seen) == ""
    for _ in range(ABSENT_AFTER):
        seen.apply(alive("a", epoch=5), 3)
    assert owner(seen) == "a"
