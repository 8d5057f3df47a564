"""Records of every released schema: this version reads them, and a process of that version reads today's beside it.

`.ci/released_schemas` has the schema of each release, as `make release-schema` stores it; `make buf` compares the
contracts with the newest one.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

from services.domain.topics import TOPICS
from testkit.repository import ROOT
from tests.services.domain.golden.write import Golden, load, meaning

SCHEMAS = sorted((ROOT / ".ci/released_schemas").glob("*.binpb"))
RECORDS, _ = load()
RENAMED = {"door": "interface"}
"""Fields that have other names now, with the same numbers."""


def released_envelopes(schema: Path) -> dict[str, Any]:
    """Return the envelope of each topic that the release has, as a class of its own schema."""
    pool = DescriptorPool()
    for file in FileDescriptorSet.FromString(schema.read_bytes()).file:
        pool.Add(file)
    found = {}
    for name, topic in TOPICS.items():
        try:
            found[name] = GetMessageClass(pool.FindMessageTypeByName(topic.envelope.DESCRIPTOR.full_name))
        except KeyError:
            """The topic is newer than the release."""
    return found


def renamed(fields: Any) -> Any:
    """Return the fields of a message of a release by their names of today."""
    if isinstance(fields, dict):
        return {RENAMED.get(name, name): renamed(value) for name, value in fields.items()}
    return [renamed(one) for one in fields] if isinstance(fields, list) else fields


def common(envelopes: dict[str, Any]) -> Iterator[tuple[Golden, Any]]:
    """Return the golden records of kinds that the release has, decoded by its schema."""
    for golden in RECORDS:
        envelope = envelopes.get(golden.topic)
        if envelope is not None and golden.kind in envelope.DESCRIPTOR.fields_by_name:
            yield golden, envelope.FromString(bytes.fromhex(golden.hex))


@pytest.mark.parametrize("schema", SCHEMAS, ids=lambda schema: schema.stem)
def test_both_versions_read_each_others_records(schema: Path) -> None:
    envelopes = released_envelopes(schema)
    assert len(envelopes) >= 12
    records = list(common(envelopes))
    assert {golden.topic for golden, _ in records} == envelopes.keys()
    for golden, read_by_release in records:
        assert read_by_release.WhichOneof(read_by_release.DESCRIPTOR.oneofs[0].name) == golden.kind
        read_by_release.DiscardUnknownFields()
        written_by_release = read_by_release.SerializeToString(deterministic=True)
        read_back = TOPICS[golden.topic].envelope.FromString(written_by_release)
        assert meaning(read_back) == renamed(meaning(read_by_release)), golden


def test_a_schema_of_this_version_or_an_earlier_one_is_stored() -> None:
    assert SCHEMAS
