"""The table of personal values: each field of the event log is in it, and docs/privacy.md lists what it says."""

import re

import pytest

from analytics.store.columns import ATTRIBUTES
from protos.push.v1.push_pb2 import Tokens
from services.domain import stored_values
from services.domain.stored_values import FIELDS, Sort, name_of, personal_fields, sort_of, stored_messages
from testkit.repository import ROOT


def test_every_field_that_is_stored_is_in_the_table_once() -> None:
    stored = {
        (name_of(message), field.name)
        for message in stored_messages()
        for field in message.fields
        if field.message_type is None
    }
    listed = [
        (message, name)
        for message, of_message in FIELDS.items()
        for names in of_message.values()
        for name in names.split()
    ]
    assert len(listed) == len(set(listed))
    assert {"not in the table": stored - set(listed), "not stored": set(listed) - stored} == {
        "not in the table": set(),
        "not stored": set(),
    }


def test_statistics_count_by_the_attributes_that_the_table_says() -> None:
    counted = {sort: names.split() for sort, names in FIELDS["registry.v1.Attributes"].items()}[Sort.COUNTED]
    assert sorted(counted) == sorted(ATTRIBUTES)


def test_an_unknown_field_has_no_sort(monkeypatch: pytest.MonkeyPatch) -> None:
    assert sort_of(Tokens.DESCRIPTOR.fields_by_name["tokens"]) == Sort.DEVICE_ID
    monkeypatch.setattr(stored_values, "FIELDS", {"push.v1.Tokens": {}})
    with pytest.raises(KeyError, match=r"protos\.push\.v1\.Tokens\.tokens"):
        sort_of(Tokens.DESCRIPTOR.fields_by_name["tokens"])


def test_the_page_lists_the_personal_fields() -> None:
    text = (ROOT / "docs" / "privacy.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| ([^|]+) \| ((?:`\w+\.\w+`(?:, )?)+) \|$", text, re.MULTILINE)
    assert {said: fields.split(", ") for said, fields in rows} == {
        sort.value: [f"`{field}`" for field in fields] for sort, fields in personal_fields().items()
    }
