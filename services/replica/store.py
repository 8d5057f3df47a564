"""The two ports of a projection: the store of a role's state and offsets, and the role's rules.

`UncommittedFacts` notes facts that could not be committed to the store.
"""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol

from services.errors import UnavailableError
from services.log.port import Partition, Record, RecordMark
from services.log.topics import Topic


class TransactionalStore(Protocol):
    """A state that changes in transactions, together with the next offset of each partition that it has applied.

    `marks`: the mark of the last applied record of each partition, where `commit` was given one.
    """

    def offsets(self) -> dict[Partition, int]: ...
    def marks(self) -> dict[Partition, RecordMark]: ...
    def begin(self) -> None: ...
    def commit(self, offsets: Mapping[Partition, int], marks: Mapping[Partition, RecordMark] | None = None) -> None: ...
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


class UncommittedFacts:
    """Notes that a follower could not commit facts which are in the log already, and ends the follower's `run`.

    The state lacks such facts until the next start reads them. Until then nothing may be committed: the offsets of
    later facts would lead past them.
    """

    def __init__(self) -> None:
        self._error: Exception | None = None
        self._running: asyncio.Task[Any] | None = None

    def check(self) -> None:
        """Check that all facts are committed. UnavailableError: some could not be."""
        if self._error:
            raise UnavailableError(f"{self._error}; the next start applies what is in the log") from self._error

    @contextmanager
    def noted(self, unless: tuple[type[Exception], ...] = ()) -> Iterator[None]:
        """Run a block that checks or commits facts which are in the log, and note its error.

        UnavailableError: the block raised an error. Errors of the types in `unless` are raised as they are and not
        noted: with them the facts do not count.
        """
        try:
            yield
        except unless:
            raise
        except Exception as error:
            self._error = error
            if self._running and self._running is not asyncio.current_task():
                self._running.cancel()
            self.check()

    @contextmanager
    def ending(self) -> Iterator[None]:
        """Run a block in the current task. UnavailableError: another task could not commit facts meanwhile."""
        self._running = asyncio.current_task()
        try:
            yield
        except asyncio.CancelledError:
            if self._error and self._running and not self._running.uncancel():
                self.check()
            raise
        finally:
            self._running = None


# The port to a role's rules: apply facts to its state, and decide which facts follow from commands.


class Fact(NamedTuple):
    """A decided record: an envelope of the topic without its meta, which the follower adds.

    Without a message it removes what a `removable` topic has stored under the key, and changes no state.
    """

    topic: Topic
    partition: int
    key: bytes
    message: Any


class Decider(Protocol):
    """The rules of one role; a follower calls them from its one thread. ValueError: the record is a dead letter."""

    def apply(self, record: Record, message: Any) -> None:
        """Apply one fact to the state. The offset of a fact that is not appended yet is -1."""
        ...

    def decide(self, record: Record, message: Any) -> Sequence[Fact]:
        """Return the facts that follow from one command and the state; change nothing."""
        ...
