"""The port to the store of a projection: its state, together with the offsets that the state has applied."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Protocol

from services.runtime.log.port import Partition


class TransactionalStore(Protocol):
    """A state that changes in transactions, together with the next offset of each partition that it has applied."""

    def offsets(self) -> dict[Partition, int]: ...
    def begin(self) -> None: ...
    def commit(self, offsets: Mapping[Partition, int]) -> None: ...
    def rollback(self) -> None: ...


@contextmanager
def transaction(store: TransactionalStore) -> Iterator[None]:
    """Begin a transaction, and roll it back if the block raises. Otherwise it stays open, for the caller to commit."""
    store.begin()
    try:
        yield
    except BaseException:
        store.rollback()
        raise
