"""The canonical text against an independent implementation, and the bodies that are refused."""

import contextlib
import gc
import json
import re
import time
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from edge.core.parsing import canonical
from edge.core.parsing.canonical import MAX_DEPTH, MAX_KEYS, canonical_text, read
from edge.core.signature import sign_text
from services.errors import InputError
from testkit.examples import examples
from testkit.signing import reference_sign, reference_text

text = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
numbers = st.from_regex(r"\A-?(0|[1-9][0-9]{0,30})(\.[0-9]{1,12})?([eE][+-]?[0-9]{1,3})?\Z")


class Written(str):
    """A number's text inside a generated value."""


values = st.recursive(
    st.none() | st.booleans() | text | numbers.map(Written),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(text, inner, max_size=4),
    max_leaves=20,
)


def rendered(value: Any, space: str, ascii_only: bool) -> str:
    """Encode as JSON with the given white space and with numbers as they were generated."""
    if isinstance(value, Written):
        return str(value)
    if isinstance(value, list):
        return f"[{space}{f',{space}'.join(rendered(entry, space, ascii_only) for entry in value)}{space}]"
    if isinstance(value, dict):
        members = (
            f"{json.dumps(key, ensure_ascii=ascii_only)}{space}:{space}{rendered(entry, space, ascii_only)}"
            for key, entry in value.items()
        )
        return f"{{{space}{f',{space}'.join(members)}{space}}}"
    return json.dumps(value, ensure_ascii=ascii_only)


@given(st.dictionaries(text, values, max_size=5), st.sampled_from(["", " ", "\r\n\t"]), st.booleans())
def test_the_text_equals_that_of_an_independent_writer(body: dict[str, Any], space: str, ascii_only: bool) -> None:
    raw = rendered(body, space, ascii_only).encode()
    assert canonical_text(raw) == reference_text(raw)


@given(st.dictionaries(text, values, max_size=5), st.lists(text, min_size=1, max_size=3))
def test_the_sign_equals_that_of_an_independent_signer(body: dict[str, Any], secrets: list[str]) -> None:
    body.pop("sign", None)
    sign = reference_sign(rendered(body, "", False).encode(), *secrets)
    request = read(rendered({"sign": sign, **body}, " ", True).encode(), len)
    assert request.sign == sign
    assert sign_text(request.text, secrets) == sign


plain_text = st.text(st.characters(exclude_categories=["Cs", "Cc"], exclude_characters='"\\'), max_size=12)
plain_values = st.recursive(
    st.none() | st.booleans() | plain_text | st.from_regex(r"\A-?(0|[1-9][0-9]{0,30})\Z").map(Written),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(plain_text, inner, max_size=4),
    max_leaves=20,
)


def read_as(value: Any) -> Any:
    """Return a parsed value with each number and text as the code reads it that gets the fields."""
    if isinstance(value, dict):
        return {name: read_as(entry) for name, entry in value.items()}
    if isinstance(value, list):
        return [read_as(entry) for entry in value]
    return value if isinstance(value, bool) else (canonical.number_or_text(value), canonical.is_number(value))


@settings(max_examples=examples(200))
@given(st.lists(st.tuples(plain_text, plain_values), max_size=5), st.sampled_from(["", " ", "\r\n\t"]))
def test_bodies_without_escapes_and_fractions_are_read_as_all_others(
    members: list[tuple[str, Any]], space: str
) -> None:
    inside = f",{space}".join(f'"{name}":{space}{rendered(value, space, False)}' for name, value in members)
    raw = f'{{{space}"sign":"s"{"," * bool(members)}{inside}}}{space}'.encode()
    try:
        fields = canonical.parse(raw)
    except InputError as error:
        with pytest.raises(InputError, match=re.escape(str(error))):
            read(raw, len)
        return
    request = read(raw, read_as)
    assert request.apps == read_as(fields)
    del fields["sign"]
    assert request.text == canonical.text_of(fields) == reference_text(raw)


tokens = st.sampled_from(
    [
        *("1", "-0", "-0.0", "1.50", "1e5", "1E400", "9" * 40, "9" * 5000, "01", "NaN", "null", "true"),
        *(
            '"a"',
            '"\\u0041"',
            '"\\""',
            '"\\\\"',
            '"\\\\\\""',
            '"-0"',
            '"a:b"',
            '"{[["',
            '" "',
            '"x:y,{"',
            '"\x7f"',
            '"\\u001f"',
        ),
        *(
            '"\\ud83d\\ude00"',
            '"\\ud800"',
            '"\\ud83d\\u0041"',
            '"\\udc00"',
            '"\\/\\n\\t\\b\\f\\r"',
            '"\\u0000"',
            '"é\\u00e9"',
        ),
    ]
)
written_keys = st.sampled_from(['"a"', '"b"', '"\\u0061"', '"\\""', '"é"', '"a:"', '"sign"'])
written_values = st.recursive(
    tokens,
    lambda inner: (
        st.lists(inner, max_size=4).map(lambda entries: f"[{', '.join(entries)}]")
        | st.lists(st.tuples(written_keys, inner), max_size=3).map(
            lambda pairs: f"{{{','.join(f'{key} :{value}' for key, value in pairs)}}}"
        )
    ),
    max_leaves=8,
)


@settings(max_examples=examples(500))
@given(st.lists(written_values, min_size=1, max_size=3))
def test_bodies_of_every_kind_have_the_text_that_json_writes(parts: list[str]) -> None:
    """msgspec parses and writes nearly all of them; those whose text it would change are left to `json`."""
    inside = ",".join(f'"k{number}":{part}' for number, part in enumerate(parts))
    raw = f'{{"sign":"x",{inside}}}'.encode()
    try:
        fields = canonical.parse(raw)
    except InputError as error:
        with pytest.raises(InputError, match=re.escape(str(error))):
            read(raw, read_as)
        return
    request = read(raw, read_as)
    assert request.apps == read_as(fields)
    del fields["sign"]
    assert request.text == canonical.text_of(fields) == reference_text(raw)


@given(values, values)
def test_order_of_keys_does_not_matter(first: Any, second: Any) -> None:
    one, other = {"a": first, "b": second}, {"b": second, "a": first}
    assert canonical_text(rendered(one, "", False).encode()) == canonical_text(rendered(other, "", True).encode())


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        ('{"b":1,"a":2}', '{"a":2,"b":1}'),
        ('{"a": -0, "b": "two  spaces"}', '{"a":-0,"b":"two  spaces"}'),
        ('{"a":1.50,"b":1E+05,"c":-0,"d":0.1e-7}', '{"a":1.50,"b":1E+05,"c":-0,"d":0.1e-7}'),
        ('{"a":123456789012345678901234567890}', '{"a":123456789012345678901234567890}'),
        ('{"\\u4e16":"\\u754c","a\\/b":"\\u0001\\n"}', '{"a/b":"\\u0001\\n","世":"界"}'),
        ('{"a":"\\ud83d\\ude00"}', '{"a":"😀"}'),
        ('{"\\uffff":1,"\\ud83d\\ude00":2}', '{"\uffff":1,"😀":2}'),
        ('{"Z":1,"a":{"sign":"kept","A":[{"b":1,"a":2}]}}', '{"Z":1,"a":{"A":[{"a":2,"b":1}],"sign":"kept"}}'),
        ('{"sign":"left out","a":"1"}', '{"a":"1"}'),
        ("{}", "{}"),
    ],
)
def test_examples(raw: str, expected: str) -> None:
    assert canonical_text(raw.encode()) == expected


def nested(levels: int) -> bytes:
    return b'{"a":' + b"[" * (levels - 1) + b"]" * (levels - 1) + b"}"


def compact(fields: dict[str, Any]) -> bytes:
    return json.dumps(fields, separators=(",", ":")).encode()


def test_nesting_as_deep_as_allowed() -> None:
    assert canonical_text(nested(MAX_DEPTH)).count("[") == MAX_DEPTH - 1
    canonical_text(b'{"a":[' + b",".join([b"{}"] * 1000) + b"]}")


@pytest.mark.parametrize(
    ("raw", "problem"),
    [
        (b"", "the body is not JSON: Expecting value at character 0"),
        (b"nonsense", "the body is not JSON: Expecting value at character 0"),
        (b'{"a":1', "the body is not JSON: Expecting ',' delimiter at character 6; it ends too early: Content-Length"),
        (b'{"a":"b', "the body is not JSON: Unterminated string starting at character 5; it ends too early"),
        ('{"a":"\u4f60'.encode()[:-1], "the body is not UTF-8; it ends too early: Content-Length counts bytes"),
        (b'{"a":1} x', "the body is not JSON: Extra data at character 8"),
        (b'\xef\xbb\xbf{"a":1}', "the body is not JSON"),
        (b'{"a":01}', "the body is not JSON"),
        (b'{"a":"\n"}', "the body is not JSON"),
        (b"[1]", "the body is not a JSON object"),
        (b'"text"', "the body is not a JSON object"),
        (b"7", "the body is not a JSON object"),
        (b"null", "the body is not a JSON object"),
        (b'{"a":NaN}', "the body is not JSON: NaN is no number"),
        (b'{"a":-Infinity}', "the body is not JSON: -Infinity is no number"),
        (b'{"a":1,"b":2,"a":1}', "a is given twice"),
        (b'{"a":1,"\\u0061":1}', "a is given twice"),
        (b'{"x":[{"a":{"b":1,"b":2}}]}', "b is given twice"),
        (b'{"a":"\xff"}', "the body is not UTF-8"),
        (b'{"a":"\xed\xa0\x80"}', "the body is not UTF-8"),
        (b'{"a":"\\ud800"}', "the body contains half of a surrogate pair"),
        (b'{"a":"\\uDC801"}', "the body contains half of a surrogate pair"),
        (b'{"a":["\\ud800",' + b"[" * 100_000, "the body is nested deeper than 32 levels"),
        (b'{"\\udfff":1}', "the body contains half of a surrogate pair"),
        (b'{"a":"\\ude00\\ud83d"}', "the body contains half of a surrogate pair"),
        (nested(MAX_DEPTH + 1), "the body is nested deeper than 32 levels"),
        (b'{"a":' + b"[" * 500_000, "the body is nested deeper than 32 levels"),
        (b'{"a":' * 200_000, "the body is nested deeper than 32 levels"),
        (b'{"a":[' + b"[1]," * 200_000 + b"1]}", "the body has more than 120000 values"),
        (b'{"a":[' + b"1," * 120_000 + b"1]}", "the body has more than 120000 values"),
        (b"{" + b",".join(b'"%d":1' % number for number in range(20_001)) + b"}", "the body has more than 20000 keys"),
    ],
)
def test_refused(raw: bytes, problem: str) -> None:
    with pytest.raises(InputError) as refusal:
        canonical_text(raw)
    assert str(refusal.value).startswith(problem)


def test_as_many_values_and_keys_as_allowed() -> None:
    tokens = {f"token-{number}": ["a"] * 100 for number in range(1000)}
    assert canonical_text(compact({"params": tokens})).count('"a"') == 100_000
    assert canonical_text(compact({str(number): 1 for number in range(MAX_KEYS)})).count(":") == MAX_KEYS
    assert canonical_text(compact({"a": ",:[{" * 100_000}))


@pytest.mark.parametrize(
    ("raw", "problem"),
    [
        (b'{"a":1}', "sign is missing"),
        (b'{"sign":null}', "sign is missing"),
        (b'{"sign":7}', "sign must be a string"),
        (b'{"sign":["a"]}', "sign must be a string"),
        (b'{"sign":"a","sign":"a"}', "sign is given twice"),
    ],
)
def test_sign_is_needed(raw: bytes, problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        read(raw, len)


@settings(max_examples=examples(300))
@given(st.binary(max_size=60) | text.map(str.encode) | st.text('{}[]":,\\udc80e1.-', max_size=40).map(str.encode))
@example(b'{"a":"\\udc801"}')
@example(b'{"\\u0000":[]}')
def test_anything_else_is_an_input_error_or_agrees_with_the_reference(raw: bytes) -> None:
    try:
        accepted = canonical_text(raw)
    except InputError:
        return
    assert accepted == reference_text(raw)
    accepted.encode()


SMALL, LARGE = 12_000, 192_000
"""Sizes of bodies, one 16 times the other."""

HOSTILE: dict[str, Callable[[int], str]] = {
    "many keys, the last one doubled": lambda size: object_of(
        *(f'"{n}":1' for n in range(size // 9)), '"z":1', '"z":1'
    ),
    "every key doubled": lambda size: object_of(*(f'"{n % (size // 18)}":1' for n in range(size // 9))),
    "one key again and again": lambda size: object_of(*['"a":1'] * (size // 6)),
    "many objects, the last with a doubled key": lambda size: list_of(*['{"a":1}'] * (size // 8), '{"a":1,"a":1}'),
    "long keys with one beginning": lambda size: object_of(*(f'"{"x" * 500}{n}":1' for n in range(size // 500))),
    "numbers": lambda size: list_of(*["1"] * (size // 2)),
    "a long integer": lambda size: list_of("9" * size),
    "a long fraction": lambda size: list_of("0." + "1" * size),
    "a long exponent": lambda size: list_of("1e" + "9" * size),
    "a number that does not end well": lambda size: list_of("-" + "1" * size + "x"),
    "escaped quotes": lambda size: list_of('"' + '\\"' * (size // 2) + '"'),
    "escaped quotes in a text without end": lambda size: '{"a":[[' * 20 + '"' + '\\"' * (size // 2),
    "backslashes without end": lambda size: '{"a":[[' * 20 + '"' + "\\" * size,
    "surrogate pairs": lambda size: list_of('"' + "\\ud83d\\ude00" * (size // 12) + '"'),
    "texts": lambda size: list_of(*['""'] * (size // 3)),
    "lists": lambda size: list_of(*["[]"] * (size // 3)),
    "lists as deep as allowed": lambda size: list_of(*["[" * 30 + "]" * 30] * (size // 61)),
    "lists without end": lambda size: '{"a":' + "[" * size,
    "white space": lambda size: '{"a":1' + " " * size + "x",
    "lines": lambda size: '{"a":1' + "\n" * size + "x",
}


def object_of(*members: str) -> str:
    return "{" + ",".join(members) + "}"


def list_of(*entries: str) -> str:
    return '{"a":[' + ",".join(entries) + "]}"


def cpu_s(body: bytes) -> float:
    """Return the least CPU time of five runs over a body, accepted or not."""
    times = []
    for _ in range(5):
        start = time.thread_time()
        with contextlib.suppress(InputError):
            canonical_text(body)
        times.append(time.thread_time() - start)
    return min(times)


@pytest.mark.parametrize("name", HOSTILE)
def test_the_cost_of_a_body_is_proportional_to_its_size(name: str) -> None:
    """16 times the bytes cost 16 times as much, or 256 times where something is quadratic; the bound lies between."""
    small, large = (HOSTILE[name](size).encode() for size in (SMALL, LARGE))
    gc.disable()
    try:
        assert cpu_s(large) < 70 * cpu_s(small)
    finally:
        gc.enable()


class CountedKey(str):
    """A key that counts the comparisons of all keys."""

    __slots__ = ()
    comparisons = 0

    def __eq__(self, other: object) -> bool:
        CountedKey.comparisons += 1
        return super().__eq__(other)

    __hash__ = str.__hash__


def test_a_doubled_key_is_found_in_one_pass() -> None:
    keys = [CountedKey(n) for n in range(10_000)]
    pairs: list[tuple[str, Any]] = [(key, 1) for key in (*keys, CountedKey(9_999))]
    with pytest.raises(InputError, match="9999 is given twice"):
        canonical._object(pairs)
    assert CountedKey.comparisons < 10 * len(keys)
