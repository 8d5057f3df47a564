"""The values of a field that devices of an app have, with the number of devices, counted in slices. Pure."""

import heapq
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, NamedTuple

from protos.targeting.v1.targeting_pb2 import CountValuesRequest, CountValuesResponse, ValueCount, ValueField
from services.errors import InputError
from services.targeting.filters import MustBeProven
from services.targeting.state import ProvenTag, TargetingState

FIELDS: Mapping[int, str] = {
    ValueField.VALUE_FIELD_TAG: "tags",
    ValueField.VALUE_FIELD_STAG: "tags",
    ValueField.VALUE_FIELD_REGION: "regions",
    ValueField.VALUE_FIELD_CARRIER: "carriers",
    ValueField.VALUE_FIELD_CHANNEL: "channels",
    ValueField.VALUE_FIELD_BRAND: "brands",
    ValueField.VALUE_FIELD_OS_VERSION: "os_versions",
    ValueField.VALUE_FIELD_APP_VERSION: "app_versions",
    ValueField.VALUE_FIELD_MODEL: "models",
}
"""The index of each field, by the names of `AppIndex.fields`."""

MAX_VALUES = 10_000
"""The most values of an answer."""

_VALUES_PER_OPERATION = 10
_VALUES_PER_STEP = 2000


class _Counted(NamedTuple):
    """A value with its devices; compared by them, the values with most devices first."""

    fewer: int
    text: str
    brand: str

    @property
    def proto(self) -> ValueCount:
        return ValueCount(value=self.text, brand=self.brand, devices=-self.fewer)


class Counting:
    """The answer to one request. `advance` runs in the thread that owns the state; between two calls facts may be
    applied, so the counts of two partitions may be of different moments.
    """

    def __init__(self, state: TargetingState, request: CountValuesRequest, is_left_out: MustBeProven) -> None:
        """`is_left_out`: the test for tags that are left out. InputError: there is no such field."""
        if request.field not in FIELDS:
            raise InputError(f"field: there is no field {request.field}")
        self.response = CountValuesResponse(partitions=sorted(state.partitions))
        self._state = state
        self._request = request
        self._is_left_out = is_left_out
        self._words = request.words.casefold().split()
        self._steps = self._count()

    def advance(self, operations: int) -> bool:
        """Do about `operations` bitmap operations, at least one step; return whether the response is complete."""
        spent = 0
        for work in self._steps:
            spent += work
            if spent >= operations:
                return False
        return True

    def _count(self) -> Iterator[int]:
        request, counts = self._request, dict[Any, int]()
        for counts in self._state.counts(request.appkey, FIELDS[request.field]):
            yield 1 + len(counts) // _VALUES_PER_OPERATION
        indexes = (partition.apps.get(request.appkey) for partition in self._state.partitions.values())
        self.response.devices = sum(len(index.reachable) for index in indexes if index)
        if request.values:
            named = [self._value_of(value) for value in request.values]
            chosen = self._found((value, counts[value]) for value in dict.fromkeys(named) if value in counts)
            self.response.values.extend(each.proto for each in sorted(chosen))
            return
        limit = min(request.limit, MAX_VALUES)
        chosen = []
        entries = iter(list(counts.items()))  # the steps are of one moment: `counts` changes between them
        while some := list(islice(entries, _VALUES_PER_STEP)):
            found = self._found(some)
            chosen = heapq.nsmallest(limit + 1, (*chosen, *found))
            yield len(some) // _VALUES_PER_OPERATION
        self.response.has_more = len(chosen) > limit
        self.response.values.extend(each.proto for each in chosen[:limit])

    def _found(self, entries: Iterable[tuple[Any, int]]) -> list[_Counted]:
        """Return those that belong to the field, are not left out, and have the words."""
        match self._request.field:
            case ValueField.VALUE_FIELD_TAG:
                kept = [_Counted(-n, str(tag), "") for tag, n in entries if self._is_listed(tag, int)]
            case ValueField.VALUE_FIELD_STAG:
                kept = [_Counted(-n, tag, "") for tag, n in entries if self._is_listed(tag, str)]
            case ValueField.VALUE_FIELD_MODEL:
                kept = [_Counted(-n, model, brand) for (brand, model), n in entries]
            case _:
                kept = [_Counted(-n, text, "") for text, n in entries]
        if self._request.values or not self._words:
            return kept
        return [each for each in kept if self._has_words(f"{each.brand} {each.text}".casefold())]

    def _is_listed(self, tag: Any, kind: type[int] | type[str]) -> bool:
        return isinstance(tag, kind) and not self._is_left_out(tag)

    def _has_words(self, text: str) -> bool:
        return all(word in text for word in self._words)

    def _value_of(self, value: ValueCount) -> Any:
        match self._request.field:
            case ValueField.VALUE_FIELD_TAG:
                return int(value.value) if value.value.removeprefix("-").isdecimal() else ProvenTag("")
            case ValueField.VALUE_FIELD_MODEL:
                return value.brand, value.value
            case _:
                return value.value
