"""Limits that several interfaces share: of filters, of string tags, and of times to live."""

from collections.abc import Mapping, Sequence

from protos.push.v1.push_pb2 import Filter
from services.errors import Code, InputError

MAX_GROUPS = 1000
"""Groups in one list of tag groups."""

MAX_GROUP_TAGS = 100
"""Tags, or string tags, in one group."""

MAX_VALUES = 1000
"""Values of one device attribute; brands, and models of one brand."""

MAX_ENTRIES = 10_000
"""Tags, string tags and values in the whole filter."""

MAX_BYTES = 256 * 1024
"""The whole filter, encoded as its record in the log."""


def check_filter_size(wanted: Filter, names: Mapping[str, str]) -> None:
    """Check that the filter as a whole is not too large.

    InputError: the filter is too large; the text names its largest part.

    `names`: the request's names of the fields of Filter.
    """
    counts = _entry_counts(wanted)
    check_count(sum(counts.values()), names[max(counts, key=lambda field: counts[field])])
    if (size := wanted.ByteSize()) > MAX_BYTES:
        sizes = {field: sum(part.ByteSize() for part in getattr(wanted, field)) for field in counts}
        largest = max(sizes, key=lambda field: sizes[field])
        raise InputError(Code.FILTER_TOO_LARGE, at=names[largest], size=size, most=MAX_BYTES)


def check_count(entries: int, at: str) -> None:
    """Check the number of tags and values of a filter, or of a part of it, at the path `at`. InputError: too many."""
    if entries > MAX_ENTRIES:
        raise InputError(Code.TOO_MANY_TAGS, at=at, count=entries, most=MAX_ENTRIES)


def check_written(raw: bytes, at: str) -> None:
    """Check the number of tags in the JSON of one or more lists before it is parsed. Errors as for `check_count`.

    A list of texts with escapes is left to later checks: a quote in it may belong to a text.
    """
    texts = raw.count(b'"') // 2
    if not texts:
        check_count(raw.count(b",") + 1, at)
    elif b"\\" not in raw:
        check_count(texts, at)


def _entry_counts(wanted: Filter) -> dict[str, int]:
    """Return the number of tags and values in each field of the filter."""
    return {
        "tags": sum(len(group.tags) for group in wanted.tags),
        "not_tags": sum(len(group.tags) for group in wanted.not_tags),
        "stags": sum(len(group.stags) for group in wanted.stags),
        "not_stags": sum(len(group.stags) for group in wanted.not_stags),
        "attributes": sum(len(clause.values) for clause in wanted.attributes),
        "models": sum(len(clause.pairs) + len(clause.brands) for clause in wanted.models),
        "activity": len(wanted.activity),
    }


# Limit of a device's string tags, for app servers and for the device itself.

MAX_DEVICE_STAGS = 1000
"""Upper bound of a device's string tags. A device that a former version gave more keeps them and gets no others."""


def has_room(known: Sequence[str], added: Sequence[str]) -> bool:
    """Return whether a device with the string tags `known` may get those in `added`."""
    return len({*known, *added}) <= max(MAX_DEVICE_STAGS, len(known))


def check_room(known: Sequence[str], added: Sequence[str]) -> None:
    """Check a device's own request to add string tags. InputError: it would have too many."""
    if not has_room(known, added):
        raise InputError(f"input error: stags: a device has at most {MAX_DEVICE_STAGS} string tags")


# The bounds of the time to live of pushes in the legacy interfaces, and of an app's default for pushes without one.

MIN_PERIOD_S = 60
MAX_PERIOD_S = 604_800
"""Seconds: 7 days. The v2 interface has a bound of its own, which is a setting of the edge."""
