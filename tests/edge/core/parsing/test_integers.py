"""Integers that are written as strings of digits, or with a fraction of zeros."""

import re
from typing import Annotated, Any, Literal

import msgspec
import pytest

from edge.core.parsing import typed
from edge.core.parsing.typed import decode, rewritten
from services.errors import InputError

Small = Annotated[int, msgspec.Meta(ge=0, le=8)]


class Body(msgspec.Struct):
    count: Small | None = None
    text: str = ""
    either: str | int = ""
    other: Any = None


@pytest.mark.parametrize(
    ("kind", "raw", "value"),
    [
        (Small, '"7"', 7),
        (Small, '"007"', 7),
        (Small, "7.0", 7),
        (Small, "7.000", 7),
        (Small, "70e-1", 7),
        (Small, "0.7E1", 7),
        (Small, "-0.0", 0),
        (Small | None, '"7"', 7),
        (Literal[0, 1] | None, '"1"', 1),
        (Literal[0, 1], "1.0", 1),
        (list[Small | list[Small]], '["1",["2",3.0]]', [1, [2, 3]]),
        (dict[str, Small], '{">=":"3"}', {">=": 3}),
        (str | int, '"7"', "7"),
        (str | int, "7.0", 7),
    ],
)
def test_they_are_decoded_where_the_type_has_an_integer(kind: Any, raw: str, value: Any) -> None:
    found = decode(kind, raw.encode(), "x")
    assert (found, type(found)) == (value, type(value))


@pytest.mark.parametrize(
    "raw",
    [
        *('"7.0"', '"7e0"', '""', '" 7"', '"7\\n"', '"٧"', '"+7"', '"null"', '"111111111111111111111"'),
        *("7.5", "1e-99999999", "true", "[7]"),
    ],
)
def test_nothing_else_is_an_integer(raw: str) -> None:
    with pytest.raises(InputError, match=r"^x must be an integer"):
        decode(Small | None, raw.encode(), "x")


@pytest.mark.parametrize("raw", ["1e400", "1e9999999999999", "1" * 5000])
def test_a_number_out_of_range_is_refused(raw: str) -> None:
    with pytest.raises(InputError, match=r"^x (is a number that is out of range|must be an integer)"):
        decode(Small, raw.encode(), "x")


class Inner(msgspec.Struct):
    small: Small | None = None
    lists: list[Small | list[Small]] | None = None


class Outer(msgspec.Struct):
    inner: Inner | Small | None = None
    counts: dict[str, Small] | None = None
    notes: dict[str, Any] | None = None


@pytest.mark.parametrize(
    ("raw", "value"),
    [
        ('{"inner":"1"}', Outer(inner=1)),
        ('{"inner": {"small": "1", "lists": ["2", ["3"]]}}', Outer(Inner(1, [2, [3]]))),
        ('{"counts":{"a":"1","b":2.0},"notes":{"c":"3","d":4.0}}', Outer(None, {"a": 1, "b": 2}, {"c": "3", "d": 4.0})),
    ],
)
def test_they_are_decoded_at_any_level(raw: str, value: Any) -> None:
    assert decode(Outer, raw.encode()) == value


@pytest.mark.parametrize(
    ("raw", "refused"),
    [
        ('{"inner":{"lists":[%s]}}', "inner.lists must have at most 10000 entries"),
        ('{"inner":{"lists":[[%s]]}}', "inner.lists must have at most 10000 entries"),
    ],
)
def test_too_many_to_be_rewritten_are_refused_by_their_number(raw: str, refused: str) -> None:
    most = ",".join(['"1"'] * 10_000)
    assert decode(Outer, (raw % most).encode()).inner.lists in ([1] * 10_000, [[1] * 10_000])
    with pytest.raises(InputError, match=f"^{re.escape(refused)}$"):
        decode(Outer, (raw % f'{most},"1"').encode())


def test_nothing_is_rewritten_where_another_field_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(typed, "rewritten", None)
    with pytest.raises(InputError, match=r"^inner\.lists\[1\] must be "):
        decode(Outer, b'{"inner":{"lists":[1,{}]},"counts":{"a":"1"}}')


def test_the_failing_key_is_not_searched_among_more_than_any_object_may_have() -> None:
    keys = ",".join(f'"k{number}":1' for number in range(1000))
    assert decode(Outer, f'{{"counts":{{{keys}}}}}'.encode()).counts["k999"] == 1
    with pytest.raises(InputError, match=r"^counts\.wrong must be an integer$"):
        decode(Outer, f'{{"counts":{{{keys[len(keys) // 2 :].partition(",")[2]},"wrong":"x"}}}}'.encode())
    with pytest.raises(InputError, match=r"^counts must have at most 1000 entries$"):
        decode(Outer, f'{{"counts":{{{keys},"wrong":"x"}}}}'.encode())


def test_all_else_stays_as_it_was_written() -> None:
    raw = '{"text":"7","either":"8","unknown":"9","other":{"b":1.50,"a":[1e400,' + "9" * 30 + ',"5"]},"count":"6"}'
    assert rewritten(raw.encode(), Body) == raw.replace('"6"', "6").encode()
