"""The rights of each user of a Kafka log follow from the topics, as docs/architecture/event-log.md shows them."""

import re

import pytest

from carillon.roles import ROLES
from services.domain.call_permissions import EVERY_ROLE
from services.domain.topics import ARCHIVE, OPERATOR, ROLE_USERS, TOPICS, UP, Right, archived_partitions, rights
from testkit.repository import ROOT

METADATA = {Right.DESCRIBE, Right.DESCRIBE_CONFIGS}


def roles_named(cell: str) -> set[str]:
    """Return the roles that a cell of the table names; what stands in brackets is left out."""
    words = re.sub(r" \(.*?\)", "", cell).strip()
    return set(EVERY_ROLE) if words == "every role" else set(words.split(", "))


def test_the_page_has_the_topics_with_their_writers_and_readers() -> None:
    page = (ROOT / "docs/architecture/event-log.md").read_text()
    rows = re.findall(r"^\| `([a-z-]+)`(.*?) \| .*? \| (.*?) \| (.*?) \|$", page, re.MULTILINE)
    table = {name: (notes, roles_named(writers), roles_named(readers)) for name, notes, writers, readers in rows}
    assert list(table) == list(TOPICS)
    for topic in TOPICS.values():
        notes, writers, readers = table[topic.name]
        assert (writers, readers) == (set(topic.written_by), set(topic.read_by)), topic.name
        assert ("one partition" in notes, "compacted" in notes) == (topic.single, topic.compacted)


def test_every_user_is_a_role_or_has_a_task_of_its_own() -> None:
    assert set(EVERY_ROLE) == set(ROLES)
    assert set(ROLE_USERS) == {*ROLES, OPERATOR, ARCHIVE}
    named = {role for topic in TOPICS.values() for role in (*topic.written_by, *topic.read_by, *topic.answered_by)}
    assert named == set(ROLES)


def test_who_answers_for_a_topic_reads_it() -> None:
    for topic in TOPICS.values():
        assert set(topic.answered_by) <= set(topic.read_by)


@pytest.mark.parametrize("user", [*ROLE_USERS, UP])
def test_the_rights_of_a_user(user: str) -> None:
    archived = {partition.topic for partition in archived_partitions(1)}
    for topic in TOPICS.values():
        given = rights(user)[topic.name]
        assert given >= METADATA
        if user in ROLES:
            assert (Right.WRITE in given, Right.READ in given) == (user in topic.written_by, user in topic.read_by)
            assert Right.DELETE not in given
        elif user == OPERATOR:
            assert given == {*METADATA, Right.READ}
        elif user == ARCHIVE:
            assert given - METADATA == ({Right.READ, Right.DELETE} if topic.name in archived else set())
        else:
            assert given >= {Right.READ, Right.WRITE}
            assert (Right.DELETE in given) == (topic.name in archived)


def test_facts_of_accounts_and_apps_have_one_writer_each() -> None:
    """Whoever could append one could forge an administrator, or another team's app."""
    for name, owner in (
        ("accounts", "accounts"),
        ("log-ins", "accounts"),
        ("drafts", "accounts"),
        ("apps", "registry"),
    ):
        assert TOPICS[name].written_by == (owner,)
