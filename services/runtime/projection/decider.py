"""The port to a role's rules: apply facts to its state, and decide which facts follow from commands."""

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from services.runtime.log.port import Record
from services.runtime.log.topics import Topic


class Fact(NamedTuple):
    """A decided record: an envelope of the topic without its meta, which the follower adds."""

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
