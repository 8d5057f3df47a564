"""The devices of the audience benchmark, the same in every run: in targeting's index and as rows for PostgreSQL."""

from array import array
from typing import Any

import numpy as np
from pyroaring import BitMap

from services.process.clock import Clock
from services.targeting.activity import HOUR_SHIFT, AppOpens, BitSlicedCounts, hour_of
from services.targeting.state import AppIndex, TargetingState, bitmaps, index_of

APP = "1000000001"
PARTITIONS = 32
TAG_SHARES = {1: 0.3, 2: 0.3, 3: 0.5, 4: 0.5, 5: 0.5, 6: 0.2, 7: 0.2, 8: 0.1}
REGIONS = 34
OTHERS = {"carriers": 3, "channels": 20, "brands": 30, "models": 600, "os_versions": 12, "app_versions": 25}
"""The number of values of the fields that the query does not name; every device has one of each."""

STAG_SHARE = 1 / 2000
"""The share of the devices that have one of the further string tags of `with_stags`."""

NOW_MS = 1_790_000_000_000
TODAY = hour_of(NOW_MS) // 24


class Devices:
    """The devices of one partition: the holders of each tag, and the region of each device."""

    def __init__(self, partition: int, of_all: int) -> None:
        self.partition = partition
        self.count = of_all // PARTITIONS + (partition < of_all % PARTITIONS)
        self._seed = partition

    def tags(self) -> dict[int, "np.ndarray[Any, np.dtype[np.bool_]]"]:
        random = np.random.default_rng([self._seed, 1])
        return {tag: random.random(self.count) < share for tag, share in TAG_SHARES.items()}

    def regions(self) -> "np.ndarray[Any, np.dtype[np.int64]]":
        return np.random.default_rng([self._seed, 2]).integers(0, REGIONS, self.count)

    def others(self) -> dict[str, "np.ndarray[Any, np.dtype[np.int64]]"]:
        random = np.random.default_rng([self._seed, 4])
        return {field: random.integers(0, values, self.count) for field, values in OTHERS.items()}

    def opens(self, days: int) -> AppOpens:
        """Return the app opens of a fifth of the devices on each day: 2.5 each, most of them in the afternoon."""
        random = np.random.default_rng([self._seed, 3])
        return AppOpens({day: self._day(random) for day in range(TODAY - days + 1, TODAY + 1)})

    def _day(self, random: np.random.Generator) -> BitSlicedCounts:
        times = random.geometric(0.4, self.count) * (random.random(self.count) < 0.2)
        numbers = np.repeat(np.arange(self.count), times)
        hours = np.clip(random.normal(14, 4, len(numbers)), 0, 23).astype(np.int64)
        entries, counts = np.unique(hours << HOUR_SHIFT | numbers, return_counts=True)
        return BitSlicedCounts(
            [_numbers(entries[counts >> bit & 1 == 1]) for bit in range(int(counts.max(initial=0)).bit_length())]
        )


def filled(devices: list[Devices], clock: Clock) -> TargetingState:
    """Return an index of the devices without app opens, built as a snapshot is restored."""
    state = empty(clock)
    for part in devices:
        state.partitions[part.partition].apps[APP] = _index(part)
    return state


def with_stags(state: TargetingState, stags: int) -> None:
    """Add string tags `news/0`, …, each on STAG_SHARE of the devices, to an index made by `filled`."""
    for number, partition in state.partitions.items():
        index = partition.apps[APP]
        random = np.random.default_rng([number, 5])
        found = list(bitmaps(index))
        size = len(index.reachable)
        for stag in range(stags):
            chosen = np.unique(random.integers(0, size, max(1, round(size * STAG_SHARE))))
            found.append(("tags", f"news/{stag}", _numbers(chosen)))
        partition.apps[APP] = index_of(found)


def empty(clock: Clock) -> TargetingState:
    return TargetingState(range(PARTITIONS), clock)


def _index(part: Devices) -> AppIndex:
    regions = part.regions()
    parts: list[tuple[str, Any, BitMap]] = [("reachable", None, BitMap(range(part.count)))]
    parts += [("tags", tag, _bitmap(has)) for tag, has in part.tags().items()]
    parts += [("regions", f"r{region}", _bitmap(regions == region)) for region in range(REGIONS)]
    for field, values in part.others().items():
        for n in range(OTHERS[field]):
            parts.append((field, (f"b{n % 30}", f"m{n}") if field == "models" else str(n), _bitmap(values == n)))
    return index_of(entry for entry in parts if entry[2])


def _bitmap(chosen: "np.ndarray[Any, np.dtype[np.bool_]]") -> BitMap:
    return _numbers(np.flatnonzero(chosen))


def _numbers(numbers: "np.ndarray[Any, np.dtype[Any]]") -> BitMap:
    return BitMap(array("I", numbers.astype(np.uint32).tobytes()))


def copied(part: Devices) -> bytes:
    """Return the devices as text for COPY; a region is the tag 1000 + its number, so that GIN indexes it too."""
    tags = part.tags()
    kinds = part.regions() * 2 ** len(tags) + sum(has * 2**place for place, has in enumerate(tags.values()))
    texts = {kind: _text(kind, list(tags)) for kind in np.unique(kinds).tolist()}
    return "".join(f"{number}\t{texts[kind]}\n" for number, kind in enumerate(kinds.tolist())).encode()


def _text(kind: int, tags: list[int]) -> str:
    region, bits = divmod(kind, 2 ** len(tags))
    return "{" + ",".join(str(n) for n in (*(t for p, t in enumerate(tags) if bits >> p & 1), 1000 + region)) + "}"
