"""Repairs compacted topics: compaction keeps the last record of a key, even one that every reader refuses.

A former owner's record is refused by every reader, but compaction may remove the valid record of its key because of it.
So the owner writes the valid one again, behind it.
"""

from collections.abc import Callable, Sequence

from services.runtime.log.port import Partition
from services.runtime.projection.decider import Fact
from services.runtime.projection.sqlite_store import SqliteStore


class RefusedKeys:
    """The keys of own partitions whose latest record was refused, stored with the state that was folded meanwhile.

    All methods are called in the follower's thread, those that change the keys inside its transaction.
    """

    def __init__(self, store: SqliteStore, valid: Callable[[Partition, bytes], Fact | None]) -> None:
        """`valid` returns the fact that makes the key's present state, with an event id and a time; None for none."""
        self._store = store
        self._valid = valid
        self._keys = store.refused()

    def note(self, partition: Partition, key: bytes, *, refused: bool) -> None:
        """Note whether the latest record of the key is refused."""
        if refused != ((partition, key) in self._keys):
            self._store.set_refused(partition, key, refused=refused)
            self._keys.symmetric_difference_update({(partition, key)})

    def reload(self) -> None:
        """Return to the stored keys, after the transaction was rolled back."""
        self._keys = self._store.refused()

    @property
    def waiting(self) -> bool:
        """Whether there are records to write again."""
        return bool(self._keys)

    def facts(self) -> Sequence[Fact]:
        """Return the facts to write again, and note all keys as restored."""
        found = [self._valid(partition, key) for partition, key in sorted(self._keys)]
        for partition, key in list(self._keys):
            self.note(partition, key, refused=False)
        return [fact for fact in found if fact is not None]
