"""The users of an installation's Kafka log, and the rights of each on the topics, which follow from `Topic`.

Kafka's ACLs, the tests of a broker and the table in docs/architecture/event-log.md all come from here. A user may do
nothing that is not named: neither make, delete nor change topics, nor use groups or transactions.
"""

from collections.abc import Mapping
from enum import Enum

from services.domain.call_permissions import EVERY_ROLE
from services.domain.topics import TOPICS
from services.runtime.log.topics import Topic

OPERATOR = "operator"
"""The user of `carillon status` and of replays for inspection: reads every topic."""

ARCHIVE = "archive"
"""The user of `carillon archive`: reads old records, and deletes what the archive has."""

UP = "up"
"""The user of `carillon up`, whose one process runs all roles and archives."""

ROLE_USERS = (*EVERY_ROLE, OPERATOR, ARCHIVE)
"""The users of an installation with a process for each role."""


class Right(Enum):
    """An operation on a topic, by Kafka's name. All users need the first two on all topics.

    A process checks at its start that each topic has the right partitions and settings, and later that each has enough
    replicas in sync. DESCRIBE also tells the offsets of a topic's ends, but nothing of its records.
    """

    DESCRIBE = "Describe"
    DESCRIBE_CONFIGS = "DescribeConfigs"
    READ = "Read"
    WRITE = "Write"
    DELETE = "Delete"


def rights(user: str) -> Mapping[str, frozenset[Right]]:
    """Return the user's rights on each topic, by the topic's name."""
    return {name: frozenset(_rights(user, topic)) for name, topic in TOPICS.items()}


def _rights(user: str, topic: Topic) -> set[Right]:
    found = {Right.DESCRIBE, Right.DESCRIBE_CONFIGS}
    if user in (OPERATOR, UP) or user in topic.read_by or (user == ARCHIVE and topic.archived):
        found.add(Right.READ)
    if user == UP or user in topic.written_by:
        found.add(Right.WRITE)
    if user in (ARCHIVE, UP) and topic.archived:
        found.add(Right.DELETE)
    return found
