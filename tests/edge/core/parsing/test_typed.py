"""PHP writes an empty object as an empty list."""

from typing import Any

import msgspec
import pytest

from edge.core.parsing.typed import decode, with_objects
from services.errors import InputError


class Inner(msgspec.Struct, frozen=True):
    number: int = 7
    names: list[str] | None = None
    texts: dict[str, str] | None = None


class Outer(msgspec.Struct, frozen=True):
    inner: Inner | None = None
    either: list[int] | Inner | None = None
    rest: Any = None


@pytest.mark.parametrize(
    ("body", "meant"),
    [
        (b"[]", Outer()),
        (b" [ ] ", Outer()),
        (b'{"inner": []}', Outer(Inner())),
        (b'{"inner": [\n]}', Outer(Inner())),
        (b'{"inner": {"texts": [], "names": []}}', Outer(Inner(names=[], texts={}))),
        (b'{"inner": {"number": "8", "texts": []}}', Outer(Inner(8, texts={}))),
        (b'{"inner": [], "either": [], "rest": []}', Outer(Inner(), [], [])),
    ],
)
def test_an_empty_list_is_an_empty_object_where_there_is_no_list(body: bytes, meant: Outer) -> None:
    assert decode(Outer, body) == meant


@pytest.mark.parametrize("body", [b"[1]", b'{"inner": [[]]}', b'{"inner": {"texts": ["a"]}}', b'{"inner": []'])
def test_other_lists_are_refused(body: bytes) -> None:
    with pytest.raises(InputError):
        decode(Outer, body)


def test_what_is_no_json_stays() -> None:
    assert with_objects(b'{"inner": []', Outer) == b'{"inner": []'
