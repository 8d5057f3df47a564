"""Filters: checked, and evaluated over an index in slices of bounded work. Pure.

First the sums of activity that the filter names are moved to the present hour, in steps. Then all bitmaps that it names
are looked up, in one step: they are the state of that moment (see ValueBitmaps). They are then combined in steps of few
bitmap operations, between which the index may change.
"""

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from pyroaring import BitMap

from protos.push.v1.push_pb2 import (
    ATTRIBUTE_BRAND,
    COMPARISON_EQUAL,
    COMPARISON_GREATER,
    COMPARISON_GREATER_OR_EQUAL,
    COMPARISON_LESS,
    COMPARISON_LESS_OR_EQUAL,
    ActivityClause,
    AttributeClause,
    Audience,
    Filter,
    ModelClause,
)
from protos.registry.v1.apps_pb2 import Channel
from protos.targeting.v1.targeting_pb2 import CountAudienceResponse, PartitionAudience, ResolveResponse
from services.domain.limits import MAX_GROUPS, MAX_VALUES, check_filter_size
from services.domain.topics import SESSIONS
from services.errors import InputError
from services.targeting.activity import WINDOWS
from services.targeting.index import Value, ValueBitmaps
from services.targeting.state import ATTRIBUTES, AppIndex, ProvenTag, TagValue, TargetingState

COMPARED: dict[int, Callable[[BitMap, Callable[[int], BitMap], int], BitMap]] = {
    COMPARISON_GREATER: lambda reachable, at_least, opens: at_least(opens + 1),
    COMPARISON_LESS: lambda reachable, at_least, opens: reachable - at_least(opens),
    COMPARISON_GREATER_OR_EQUAL: lambda reachable, at_least, opens: at_least(opens),
    COMPARISON_LESS_OR_EQUAL: lambda reachable, at_least, opens: reachable - at_least(opens + 1),
    COMPARISON_EQUAL: lambda reachable, at_least, opens: at_least(opens) - at_least(opens + 1),
}

_UNITED_AT_ONCE = 32
_LOOK_UPS_PER_OPERATION = 10
_OPERATIONS_PER_ACTIVITY = 30
_MOVED_AT_ONCE = 100

Steps = Generator[int, None, BitMap]
"""Yields the work of each step, in bitmap operations, and returns the devices as a new bitmap."""

Groups = list[list[BitMap]]
"""Devices that are in all bitmaps of at least one inner list."""


class Clauses(NamedTuple):
    """A filter with the bitmaps of one moment: devices in all of `included` and in none of `excluded`."""

    included: list[Groups]
    excluded: list[Groups]
    entries: int


MustBeProven = Callable[[int | str], bool]
"""Whether only the devices that have proven a tag count as having it."""


def matching(index: AppIndex, wanted: Filter, present_hour: Callable[[], int], must_be_proven: MustBeProven) -> Steps:
    """Return the reachable devices that match a checked filter. `present_hour`: called at each step (see `hour_of`)."""
    containers = 1 + (len(index.reachable) >> 16)
    windows = {clause.days for clause in wanted.activity}
    moved = 0
    while work := index.activity.move(windows, present_hour()):
        moved += work * containers
        if moved >= _MOVED_AT_ONCE:
            yield moved
            moved = 0
    clauses = clauses_of(index, wanted, present_hour(), must_be_proven)
    compared = _OPERATIONS_PER_ACTIVITY * containers * len(wanted.activity)
    yield 1 + moved + clauses.entries // _LOOK_UPS_PER_OPERATION + compared
    steps = _combined(clauses)
    while True:
        try:
            yield next(steps) * containers
        except StopIteration as done:
            devices: BitMap = done.value
            return devices


def clauses_of(index: AppIndex, wanted: Filter, hour: int, must_be_proven: MustBeProven) -> Clauses:
    """Look up the bitmaps that a filter names. Without a positive clause all reachable devices are included."""

    def tags_of(groups: Iterable[Iterable[int | str]]) -> Groups:
        valued = ([ProvenTag(tag) if must_be_proven(tag) else tag for tag in group] for group in groups)
        return _groups(index.tags.values, valued)

    included = [
        *([tags_of(group.tags for group in wanted.tags)] if wanted.tags else []),
        *([tags_of(group.stags for group in wanted.stags)] if wanted.stags else []),
        *(_attribute(index, clause) for clause in wanted.attributes if not clause.negated),
        *(_models(index, clause) for clause in wanted.models if not clause.negated),
        *([[_active(index, clause, hour)]] for clause in wanted.activity),
    ]
    excluded = [
        *([tags_of(group.tags for group in wanted.not_tags)] if wanted.not_tags else []),
        *([tags_of(group.stags for group in wanted.not_stags)] if wanted.not_stags else []),
        *(_attribute(index, clause) for clause in wanted.attributes if clause.negated),
        *(_models(index, clause) for clause in wanted.models if clause.negated),
    ]
    entries = sum(len(group) for groups in (*included, *excluded) for group in groups)
    return Clauses(included or [[[index.reachable.copy()]]], excluded, entries)


def _groups(values: ValueBitmaps[TagValue], groups: Iterable[Iterable[TagValue]]) -> Groups:
    """Look up groups of tags; a group with a tag that no device has matches none and is left out."""
    found: list[list[BitMap]] = []
    for group in groups:
        bitmaps = [values.find(tag) for tag in group]
        known = [bitmap for bitmap in bitmaps if bitmap is not None]
        if len(known) == len(bitmaps):
            found.append(known)
    return found


def _attribute(index: AppIndex, clause: AttributeClause) -> Groups:
    return _values(index.attributes[clause.attribute].values, clause.values)


def _values(values: ValueBitmaps[Value], wanted: Iterable[Value]) -> Groups:
    return [[bitmap] for value in wanted if (bitmap := values.find(value)) is not None]


def _models(index: AppIndex, clause: ModelClause) -> Groups:
    pairs = ((pair.brand, pair.model) for pair in clause.pairs)
    brands = index.attributes[ATTRIBUTE_BRAND].values
    return [*_values(index.models.values, pairs), *_values(brands, clause.brands)]


def _active(index: AppIndex, clause: ActivityClause, hour: int) -> BitMap:
    """Compare by `at_least` alone, because devices that never opened the app are in no slice."""

    def at_least(opens: int) -> BitMap:
        return index.activity.at_least(opens, clause.days, hour) if opens else index.reachable

    return COMPARED[clause.comparison](index.reachable, at_least, clause.opens) & index.reachable


def _combined(clauses: Clauses) -> Steps:
    chosen: BitMap | None = None
    for groups in clauses.included:
        part = yield from _any_group(groups)
        chosen = part if chosen is None else chosen & part
        if not chosen:
            return BitMap()
    assert chosen is not None
    for groups in clauses.excluded:
        chosen -= yield from _any_group(groups)
    return chosen


def _any_group(groups: Groups) -> Steps:
    united = BitMap()
    for at in range(0, len(groups), _UNITED_AT_ONCE):
        some = groups[at : at + _UNITED_AT_ONCE]
        operations = sum(len(group) for group in some)
        united = BitMap.union(united, *[_every(group) for group in some])
        yield operations
    return united


def _every(bitmaps: Sequence[BitMap]) -> BitMap:
    """Return the devices in all bitmaps, the smallest first so that the result stays small."""
    chosen, *others = sorted(bitmaps, key=len)
    for bitmap in others:
        chosen = chosen & bitmap
    return chosen


# Checks a filter before it is evaluated: filters that can never be resolved are refused, whoever wrote them.

MAX_ACTIVITY_CLAUSES = 50

_CLAUSE_LISTS: Mapping[str, int] = {
    "attributes": MAX_VALUES,
    "models": MAX_VALUES,
    "activity": MAX_ACTIVITY_CLAUSES,
}


def checked_filter(audience: Audience) -> Filter:
    """Return the audience as a filter, an empty one for everyone.

    InputError: another form, an invalid filter, or one larger than the HTTP interfaces accept.
    """
    match audience.WhichOneof("audience"):
        case "everyone":
            return Filter()
        case "filter":
            _check_groups(audience.filter)
            _check_clauses(audience.filter)
            check_filter_size(
                audience.filter, {field.name: f"filter.{field.name}" for field in Filter.DESCRIPTOR.fields}
            )
            return audience.filter
        case form:
            raise InputError(f"audience: everyone or a filter can be resolved, not {form or 'nothing'}")


def _check_groups(wanted: Filter) -> None:
    """Refuse empty groups, which would match everyone, and too many groups."""
    sizes = {
        "tags": [len(group.tags) for group in wanted.tags],
        "not_tags": [len(group.tags) for group in wanted.not_tags],
        "stags": [len(group.stags) for group in wanted.stags],
        "not_stags": [len(group.stags) for group in wanted.not_stags],
    }
    for field, of_groups in sizes.items():
        if 0 in of_groups:
            raise InputError(f"filter.{field}: a group is empty")
        if len(of_groups) > MAX_GROUPS:
            raise InputError(f"filter.{field}: {len(of_groups)} groups, but at most {MAX_GROUPS} are allowed")


def _check_clauses(wanted: Filter) -> None:
    for field, most in _CLAUSE_LISTS.items():
        if (count := len(getattr(wanted, field))) > most:
            raise InputError(f"filter.{field}: {count} clauses, but at most {most} are allowed")
    for attribute in wanted.attributes:
        if attribute.attribute not in ATTRIBUTES:
            raise InputError(f"filter.attributes: there is no attribute {attribute.attribute}")
    for activity in wanted.activity:
        if activity.days not in WINDOWS:
            raise InputError(f"filter.activity: days is {activity.days}, but must be one of {WINDOWS}")
        if activity.comparison not in COMPARED:
            raise InputError(f"filter.activity: there is no comparison {activity.comparison}")


# One request's audience, resolved in slices of bounded work.


class Resolution:
    """One request's audience: the devices that match a checked filter, each partition's as of one moment.

    `advance` runs in the thread that owns the state; between two calls facts may be applied.
    """

    def __init__(
        self,
        state: TargetingState,
        appkey: str,
        wanted: Filter,
        partitions: Sequence[int],
        must_be_proven: MustBeProven = lambda tag: False,
    ) -> None:
        self.response = ResolveResponse()
        self._state = state
        self._appkey = appkey
        self._wanted = wanted
        self._partitions = partitions
        self._must_be_proven = must_be_proven
        self._steps = self._resolve()

    def advance(self, operations: int) -> bool:
        """Do about `operations` bitmap operations, at least one step; return whether the response is complete."""
        spent = 0
        for work in self._steps:
            spent += work
            if spent >= operations:
                return False
        return True

    def _resolve(self) -> Iterator[int]:
        for number in self._partitions:
            partition = self._state.partitions[number]
            index = partition.apps.get(self._appkey)
            hour = self._state.hour
            devices = (yield from matching(index, self._wanted, hour, self._must_be_proven)) if index else BitMap()
            yield self._add(number, index, devices)

    def _add(self, number: int, index: AppIndex | None, devices: BitMap) -> int:
        """Add the devices of a partition to the response; return the work, in bitmap operations."""
        devices.run_optimize()
        part = PartitionAudience(
            partition=number,
            bitmap=devices.serialize(),
            count=len(devices),
            attributes_until=1 + self._state.partitions[number].offsets.get(SESSIONS.name, 0),
        )
        self.response.partitions.append(part)
        return 1


class AudienceSize(Resolution):
    """How many devices one request's audience has, as of the same moments, in `counted`."""

    def __init__(
        self,
        state: TargetingState,
        appkey: str,
        wanted: Filter,
        partitions: Sequence[int],
        must_be_proven: MustBeProven = lambda tag: False,
    ) -> None:
        super().__init__(state, appkey, wanted, partitions, must_be_proven)
        self.counted = CountAudienceResponse()

    def _add(self, number: int, index: AppIndex | None, devices: BitMap) -> int:
        if index is None:
            return 1
        self.counted.devices += len(devices)
        self.counted.app_devices += len(index.reachable)
        channels = {each.channel: each for each in self.counted.channels}
        work = 2
        for channel, addressed in index.channels.values.items():
            work += 1
            if count := devices.intersection_cardinality(addressed):
                of_channel = channels.get(Channel.ValueType(channel)) or self.counted.channels.add()
                of_channel.channel = Channel.ValueType(channel)
                of_channel.devices += count
        return work
