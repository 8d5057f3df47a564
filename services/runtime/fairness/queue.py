"""Start-time fair queueing: work of several keys, usually apps, is taken in turn, each key's own in order.

Each item has a size in a unit of the caller's choice (bytes, devices, or 1). Virtual time is the sum of the sizes that
each waiting key has been served since they all waited. An item starts at the end of its key's previous item, or now for
a key that had nothing waiting; the item with the earliest start is taken next. So keys with items of equal size
alternate; a key whose items are ten times as large gets a tenth of the turns; and a key that comes back after a pause
neither waits behind the others' backlog nor may catch up on the turns that it did not use.
(Goyal, Vin and Cheng, 1996.)

The queue has no bound of its own: its owner asks `waiting` and refuses.
"""

from collections import deque
from collections.abc import Callable, Hashable
from heapq import heappop, heappush
from typing import Generic, TypeVar

_MIN_ENDS = 1000
Key = TypeVar("Key", bound=Hashable)
Item = TypeVar("Item")


class FairQueue(Generic[Key, Item]):
    """A queue that takes the items of its keys in turn. Adding and taking cost the logarithm of the number of keys."""

    def __init__(self) -> None:
        self._by_key: dict[Key, deque[tuple[float, float, Item]]] = {}
        self._sizes: dict[Key, float] = {}
        self._heads: list[tuple[float, int, Key]] = []
        self._ends: dict[Key, float] = {}
        self._max_ends = _MIN_ENDS
        self._now = 0.0
        self._added = 0

    def __len__(self) -> int:
        """Return the number of keys with waiting items."""
        return len(self._by_key)

    def waiting(self, key: Key) -> int:
        """Return how many items of the key wait."""
        return len(self._by_key.get(key, ()))

    def waiting_size(self, key: Key) -> float:
        """Return the sum of the sizes of the key's waiting items."""
        return self._sizes.get(key, 0)

    def items(self, key: Key) -> list[Item]:
        """Return the key's waiting items in order."""
        return [item for _, _, item in self._by_key.get(key, ())]

    def put(self, key: Key, item: Item, size: float = 1) -> None:
        """Add an item behind the key's others."""
        start = max(self._now, self._ends.get(key, 0.0))
        self._set_end(key, start + size)
        self._sizes[key] = self._sizes.get(key, 0) + size
        items = self._by_key.get(key)
        if items is None:
            items = self._by_key[key] = deque()
            self._push_head(start, key)
        items.append((start, size, item))

    def charge(self, key: Key, size: float) -> None:
        """Charge the key for work whose size became known only after it was taken."""
        self._set_end(key, max(self._now, self._ends.get(key, 0.0)) + size)

    def take(self, may_run: Callable[[Key], bool] = lambda key: True) -> tuple[Key, Item] | None:
        """Take the next item, with its key, of the keys that may run; None if there is none."""
        passed_over: list[tuple[float, int, Key]] = []
        found: tuple[Key, Item] | None = None
        while self._heads and found is None:
            head = heappop(self._heads)
            key = head[2]
            if may_run(key):
                found = key, self._take_first(key)
            else:
                passed_over.append(head)
        for head in passed_over:
            heappush(self._heads, head)
        return found

    def discard(self, key: Key, item: Item) -> None:
        """Remove an item that is not wanted any more, if it still waits."""
        self.keep(key, lambda each: each is not item)

    def keep(self, key: Key, is_wanted: Callable[[Item], bool]) -> None:
        """Remove the key's waiting items that are not wanted any more."""
        items = self._by_key.get(key, ())
        kept = deque(each for each in items if is_wanted(each[2]))
        if kept:
            self._by_key[key] = kept
            self._sizes[key] = sum(size for _, size, _ in kept)
        elif items:
            self._heads = sorted(head for head in self._heads if head[2] != key)
            self._drop(key)

    def _take_first(self, key: Key) -> Item:
        items = self._by_key[key]
        start, size, item = items.popleft()
        self._now = max(self._now, start)
        if items:
            self._push_head(items[0][0], key)
            self._sizes[key] -= size
        else:
            self._drop(key)
            if not self._by_key:
                self._now = max(self._now, start + size)
        return item

    def _drop(self, key: Key) -> None:
        del self._by_key[key], self._sizes[key]

    def _push_head(self, start: float, key: Key) -> None:
        self._added += 1
        heappush(self._heads, (start, self._added, key))

    def _set_end(self, key: Key, end: float) -> None:
        """Note where the key's work ends; forget the ends that lie in the past, which mean nothing any more."""
        self._ends[key] = end
        if len(self._ends) > self._max_ends:
            self._ends = {each: at for each, at in self._ends.items() if at > self._now}
            self._max_ends = max(_MIN_ENDS, 2 * len(self._ends))
