"""Stored records must keep their meaning for ever: golden bytes of every fact and command.

A test fails here when a field or enum value was renumbered, renamed or taken away. For a new one run
`python -m tests.services.domain.golden.write`, which adds and never changes.
"""

from collections.abc import Iterable

import pytest

from services.domain.topics import TOPICS, decode
from services.log.port import Record
from tests.services.domain.golden import write
from tests.services.domain.golden.write import VARIANTS, Golden, filled, kinds, meaning, paths

RECORDS, ENUMS = write.load()


def shown(topic: str, kind: str, meanings: Iterable[dict[str, object]]) -> set[str]:
    descriptor = TOPICS[topic].envelope.DESCRIPTOR
    return {path for fields in meanings for path in paths(descriptor, fields)}


@pytest.mark.parametrize("golden", RECORDS, ids=lambda golden: f"{golden.topic} {golden.kind}")
def test_stored_bytes_decode_to_the_same_fields(golden: Golden) -> None:
    message = decode(Record(golden.topic, 0, 0, b"", bytes.fromhex(golden.hex)))
    assert meaning(message) == golden.fields
    assert message.WhichOneof(message.DESCRIPTOR.oneofs[0].name) == golden.kind
    assert message.SerializeToString(deterministic=True).hex() == golden.hex


@pytest.mark.parametrize(("topic", "kind"), list(kinds()))
def test_every_field_of_every_fact_and_command_has_golden_bytes(topic: str, kind: str) -> None:
    golden = shown(topic, kind, (record.fields for record in RECORDS if (record.topic, record.kind) == (topic, kind)))
    now = shown(topic, kind, (meaning(filled(topic, kind, variant)) for variant in range(VARIANTS)))
    assert now - golden == set(), "run: python -m tests.services.domain.golden.write"


def test_enum_values_keep_their_numbers() -> None:
    now = write.enums()
    for name, values in ENUMS.items():
        assert values.items() <= now[name].items()
    assert {name: set(values) for name, values in now.items()} == {name: set(v) for name, v in ENUMS.items()}
