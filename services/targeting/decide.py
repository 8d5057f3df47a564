"""Evaluates filters over an index. Pure."""

from collections.abc import Callable, Iterable, Iterator

from pyroaring import BitMap

from protos.push.v1.push_pb2 import (
    COMPARISON_EQUAL,
    COMPARISON_GREATER,
    COMPARISON_GREATER_OR_EQUAL,
    COMPARISON_LESS,
    COMPARISON_LESS_OR_EQUAL,
    ActivityClause,
    Audience,
    Filter,
)
from services.runtime.errors import InputError
from services.targeting.activity import WINDOWS
from services.targeting.index import Value, ValueBitmaps
from services.targeting.state import ATTRIBUTES, AppIndex

_COMPARED: dict[int, Callable[[BitMap, Callable[[int], BitMap], int], BitMap]] = {
    COMPARISON_GREATER: lambda reachable, at_least, opens: at_least(opens + 1),
    COMPARISON_LESS: lambda reachable, at_least, opens: reachable - at_least(opens),
    COMPARISON_GREATER_OR_EQUAL: lambda reachable, at_least, opens: at_least(opens),
    COMPARISON_LESS_OR_EQUAL: lambda reachable, at_least, opens: reachable - at_least(opens + 1),
    COMPARISON_EQUAL: lambda reachable, at_least, opens: at_least(opens) - at_least(opens + 1),
}


def checked_filter(audience: Audience) -> Filter:
    """Return the audience as a filter, an empty one for everyone. InputError: another form, or an invalid filter."""
    match audience.WhichOneof("audience"):
        case "everyone":
            return Filter()
        case "filter":
            _check_groups(audience.filter)
            _check_clauses(audience.filter)
            return audience.filter
        case form:
            raise InputError(f"audience: everyone or a filter can be resolved, not {form or 'nothing'}")


def matching(index: AppIndex, wanted: Filter, today: int) -> BitMap:
    """Return the reachable devices that match a checked filter, as a new bitmap. `today`: a day as of `day_of`."""
    included = _included(index, wanted, today)
    chosen = next(included, None)
    if chosen is None:
        chosen = index.reachable.copy()
    for part in included:
        if not chosen:
            break
        chosen &= part
    for part in _excluded(index, wanted):
        chosen -= part
    return chosen


def _check_groups(wanted: Filter) -> None:
    """Refuse empty groups: they would match everyone, which is never intended."""
    sizes = {
        "tags": [len(group.tags) for group in wanted.tags],
        "not_tags": [len(group.tags) for group in wanted.not_tags],
        "stags": [len(group.stags) for group in wanted.stags],
        "not_stags": [len(group.stags) for group in wanted.not_stags],
    }
    for field, of_groups in sizes.items():
        if 0 in of_groups:
            raise InputError(f"filter.{field}: a group is empty")


def _check_clauses(wanted: Filter) -> None:
    for attribute in wanted.attributes:
        if attribute.attribute not in ATTRIBUTES:
            raise InputError(f"filter.attributes: there is no attribute {attribute.attribute}")
    for activity in wanted.activity:
        if activity.days not in WINDOWS:
            raise InputError(f"filter.activity: days is {activity.days}, but must be one of {WINDOWS}")
        if activity.comparison not in _COMPARED:
            raise InputError(f"filter.activity: there is no comparison {activity.comparison}")


def _included(index: AppIndex, wanted: Filter, today: int) -> Iterator[BitMap]:
    """Yield the devices that each positive clause matches, as new bitmaps; a device must be in all of them."""
    if wanted.tags:
        yield _any_group(index, (group.tags for group in wanted.tags))
    if wanted.stags:
        yield _any_group(index, (group.stags for group in wanted.stags))
    for clause in wanted.attributes:
        if not clause.negated:
            yield _any_value(index.attributes[clause.attribute].values, clause.values)
    for models in wanted.models:
        if not models.negated:
            yield _any_value(index.models.values, ((pair.brand, pair.model) for pair in models.pairs))
    for activity in wanted.activity:
        yield _active(index, activity, today)


def _excluded(index: AppIndex, wanted: Filter) -> Iterator[BitMap]:
    """Yield the devices that each negated clause names; a device must be in none of them."""
    if wanted.not_tags:
        yield _any_group(index, (group.tags for group in wanted.not_tags))
    if wanted.not_stags:
        yield _any_group(index, (group.stags for group in wanted.not_stags))
    for clause in wanted.attributes:
        if clause.negated:
            yield _any_value(index.attributes[clause.attribute].values, clause.values)
    for models in wanted.models:
        if models.negated:
            yield _any_value(index.models.values, ((pair.brand, pair.model) for pair in models.pairs))


def _any_group(index: AppIndex, groups: Iterable[Iterable[int | str]]) -> BitMap:
    return _union([_every(index, group) for group in groups])


def _every(index: AppIndex, tags: Iterable[int | str]) -> BitMap:
    found = [index.tags.values.find(tag) for tag in tags]
    known = sorted((bitmap for bitmap in found if bitmap is not None), key=len)
    if len(known) < len(found):
        return BitMap()
    chosen = known[0]
    for bitmap in known[1:]:
        chosen = chosen & bitmap
    return chosen


def _any_value(values: ValueBitmaps[Value], wanted: Iterable[Value]) -> BitMap:
    found = (values.find(value) for value in wanted)
    return _union([bitmap for bitmap in found if bitmap is not None])


def _union(parts: list[BitMap]) -> BitMap:
    return BitMap.union(*parts) if parts else BitMap()


def _active(index: AppIndex, clause: ActivityClause, today: int) -> BitMap:
    """Compare by `at_least` alone, because devices that never opened the app are in no slice."""

    def at_least(opens: int) -> BitMap:
        return index.activity.at_least(opens, clause.days, today) if opens else index.reachable

    return _COMPARED[clause.comparison](index.reachable, at_least, clause.opens) & index.reachable
