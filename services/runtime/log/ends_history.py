"""Ends of the log at recent checks, from which the age of unread records is estimated without reading them."""

from collections.abc import Mapping

from services.runtime.log.port import Partition

_KEPT = 64


class EndsHistory:
    """The ends of partitions at recent checks. Of older checks fewer are kept, so that it reaches far back."""

    def __init__(self) -> None:
        self._checks: list[tuple[float, Mapping[Partition, int]]] = []

    def note(self, now_ms: float, ends: Mapping[Partition, int]) -> None:
        """Remember that the partitions end there now."""
        self._checks.append((now_ms, ends))
        if len(self._checks) > _KEPT:
            del self._checks[min(range(1, _KEPT), key=lambda index: self._gap(index, now_ms))]

    def _gap(self, index: int, now_ms: float) -> float:
        """Return the time between a check's neighbours, as a share of its age."""
        (before_ms, _), (own_ms, _), (after_ms, _) = self._checks[index - 1 : index + 2]
        return (after_ms - before_ms) / max(1, now_ms - own_ms)

    def waited_ms(self, now_ms: float, applied: Mapping[Partition, int]) -> int:
        """Return for how long the oldest record behind these offsets has waited at least; 0 if all are applied."""
        since_ms = now_ms
        for noted_ms, ends in reversed(self._checks):
            if all(offset >= ends.get(partition, 0) for partition, offset in applied.items()):
                break
            since_ms = noted_ms
        return max(0, round(now_ms - since_ms))
