"""Integers that are written as strings of digits, or with a fraction of zeros."""

from typing import Annotated, Any, Literal

import msgspec
import pytest

from edge.core.parsing.integers import rewritten
from edge.core.parsing.typed import decode
from services.runtime.errors import InputError

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


def test_all_else_stays_as_it_was_written() -> None:
    raw = '{"text":"7","either":"8","unknown":"9","other":{"b":1.50,"a":[1e400,' + "9" * 30 + ',"5"]},"count":"6"}'
    assert rewritten(raw.encode(), Body) == raw.replace('"6"', "6").encode()
