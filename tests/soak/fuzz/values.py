"""Mutates JSON values, and writes the results: also objects with repeated keys, and text that is not JSON."""

import json
from collections.abc import Callable, Sequence
from json.encoder import encode_basestring, encode_basestring_ascii
from random import Random
from typing import Any, NamedTuple

Value = Any
"""None, bool, int, float, str, a list, an Object, or Raw."""


class Object(list[tuple[str, Value]]):
    """A JSON object as its pairs, so that a key can occur twice."""


class Raw(str):
    """JSON text that is written as it is, whether or not it is valid."""


NUMBERS = (
    *(0, -1, 1, 2, 2**31 - 1, 2**31, 2**32, 2**53, 2**63 - 1, 2**63, 2**64, -(2**63) - 1, 10**30, -32768, 32768),
    *(Raw("1e999"), Raw("-1e999"), Raw("1E5"), Raw("-0"), Raw("-0.0"), Raw("0.5"), Raw("1.0"), Raw("1e-400")),
    *(Raw("9" * 5000), Raw("0." + "1" * 5000), Raw("NaN"), Raw("Infinity"), Raw("01"), Raw("+1"), Raw("0x10")),
    *(Raw("1e999999999999999999999"), Raw("1e-999999999"), Raw("0e999999999"), Raw("0e-999999999"), Raw("1E+2")),
    *(Raw("1e39"), Raw("100000e-5"), Raw("12345678901234567890.0"), Raw("1" * 21)),
)
TEXTS = (
    *("", "0", "1", "-1", "1.0", " 1 ", "1_000", "１２", "٣", "1e5", "true", "null", "all", "nan", "inf"),
    *("\0", "a\0b", "\x1f", "\x7f", "\u2028", "\ufeff", "\u202e", "é", "e\u0301", "😀", "上海市", "a" * 41, "世" * 14),
    *("a" * 5000, "😀" * 1025, "9" * 400, "../../etc/passwd", "'; DROP TABLE x; --", "{}", "[]", "%s%n", "=1+1", "<b>"),
    *("2026-02-30 25:61", "2026-09-22 12:00", "9999-12-31 23:59", "0000-00-00", "1970-01-01", "2026-09-21"),
    *("1969-12-31", "2106-02-08", "2148-12-31", "2262-04-12", "2026-W10-1", "2026-12-31 24:00", "20260921"),
    *("<" + "ab " * 32 + ">", "AB" * 32, "a" * 63, "f" * 201, " " * 300, "<>" * 100, "cM", "中国移动"),
    *(Raw('"\\ud800"'), Raw('"\\udfff\\ud800"'), Raw('"\\u0000"'), Raw('"\\x"'), Raw('"open')),
)
OTHERS: tuple[Value, ...] = (
    None,
    True,
    False,
    [],
    Object(),
    [[]],
    [None],
    [[None]],
    Object([("", None)]),
    Object([("android", None)]),
)
_encode = json.JSONEncoder(ensure_ascii=False).encode
_DEPTHS = (5, 31, 32, 33, 300, 2000)
_MANY = (2, 2, 50)
_LARGE_DEPTHS = (2000, 100_000)
_LARGE_COUNTS = (1000, 1001, 5000)


class Style(NamedTuple):
    """The way a value is written as JSON text."""

    comma: str = ","
    colon: str = ":"
    text: Callable[[str], str] = encode_basestring


COMPACT = Style()
STYLES = (Style(" , ", " :\t"), Style(",\r\n  ", ": "), Style(text=encode_basestring_ascii))


def parsed(text: str) -> Value:
    """Return the value of valid JSON text."""
    return json.loads(text, object_pairs_hook=Object)


def written(value: Value, style: Style = COMPACT) -> str:
    """Return the JSON text of a value. A part that occurs often is written once and copied."""
    comma, colon, text = style
    known: dict[int, str] = {}

    def of(value: Value) -> str:
        if isinstance(value, str):
            return value if isinstance(value, Raw) else text(value)
        if not isinstance(value, list):
            return _encode(value)
        found = known.get(id(value))
        if found is None:
            if isinstance(value, Object):
                found = "{" + comma.join([text(key) + colon + of(child) for key, child in value]) + "}"
            else:
                found = "[" + comma.join([of(child) for child in value]) + "]"
            known[id(value)] = found
        return found

    return of(value)


class Mutator:
    """Mutates JSON values by the choices of `random`. `pool` are the valid values, whose parts are put elsewhere."""

    def __init__(self, random: Random, pool: Sequence[Value]) -> None:
        self._random = random
        self._pool = pool

    def mutated(self, value: Value) -> Value:
        """Return a copy with one to four mutations."""
        value = _copy(value)
        for _ in range(self._random.choice((1, 1, 1, 1, 2, 4))):
            self._mutate_one(value, self._mutate)
        return value

    def enlarged(self, value: Value) -> Value:
        """Return a copy with one mutation that makes it large: many entries or keys, or nesting."""
        value = _copy(value)
        self._mutate_one(value, self._enlarge)
        return value

    def _mutate_one(self, value: Value, mutate: Callable[[list[Any]], None]) -> None:
        containers = [container for container in _containers(value) if container]
        if containers:
            mutate(self._random.choice(containers))

    def _enlarge(self, container: list[Any]) -> None:
        """Repeat the entries of a list, or add keys or nesting to an object."""
        count = self._random.choice(_LARGE_COUNTS)
        if not isinstance(container, Object):
            container *= count
        elif self._random.random() < 0.5:
            container += [(f"k{number}", number) for number in range(count)]
        else:
            index = self._random.randrange(len(container))
            key, value = container[index]
            large = [value] * count if self._random.random() < 0.5 else self._nested(_LARGE_DEPTHS)
            container[index] = (key, large)

    def _mutate(self, container: list[Any]) -> None:
        index = self._random.randrange(len(container))
        if isinstance(container, Object):
            key, value = container[index]
            change = self._random.randrange(11)
            if change == 0:
                del container[index]
            elif change == 1:
                container[index] = (self._near_miss(key), value)
            elif change == 2:
                container.append((key, self._replacement(value) if self._random.random() < 0.5 else value))
            elif change == 3:
                container.append(self._pair_of_another())
            elif change == 4 and self._random.random() < 0.1:
                container += [(f"k{number}", number) for number in range(self._random.choice(_MANY))]
            elif change == 5:
                self._random.shuffle(container)
            else:
                container[index] = (key, self._replacement(value))
        elif self._random.random() < 0.15:
            container *= self._random.choice(_MANY) if len(container) < 10 and self._random.random() < 0.2 else 2
        elif self._random.random() < 0.1:
            del container[index]
        else:
            container[index] = self._replacement(container[index])

    def _nested(self, depths: Sequence[int]) -> Raw:
        depth = self._random.choice(depths)
        opening, closing = self._random.choice((("[", "]"), ('{"a":', "}")))
        return Raw(opening * depth + ("1" if self._random.random() < 0.5 else '"x"') + closing * depth)

    def _replacement(self, value: Value) -> Value:
        """Return another value: of the same type, of another type, wrapped, or deeply nested."""
        random = self._random
        change = random.randrange(20)
        if change < 7:
            return self._alike(value)
        if change < 10:
            return random.choice(NUMBERS)
        if change < 13:
            return random.choice(TEXTS)
        if change < 16:
            return _copy(random.choice(OTHERS))
        if change < 17:
            return [value] * random.choice((1, 2, 3))
        if change < 18:
            return Object([(random.choice(("android", "ios", "a", "")), value)])
        if change < 19:
            return self._pair_of_another()[1]
        return self._nested(_DEPTHS if random.random() < 0.3 else (3,))

    def _alike(self, value: Value) -> Value:
        random = self._random
        if isinstance(value, bool) or value is None:
            return random.choice((True, False, 0, 1, "true", None))
        if isinstance(value, int):
            return random.choice((value + 1, value - 1, -value, float(value), str(value), value * 10**6, [value]))
        if isinstance(value, str) and value:
            place = random.randrange(len(value) + 1)
            inserted = random.choice(("\0", " ", "é", "😀", '"', "\\", "\ufffd", "\u0660", "a", ",", "\n"))
            cut = value[:place] + inserted + value[place:]
            return random.choice(
                (cut, value[:place], value.upper(), value.swapcase(), value * 50, value[::-1], f" {value}")
            )
        return random.choice((None, "", 0, []))

    def _near_miss(self, key: str) -> str:
        random = self._random
        place = random.randrange(len(key) + 1)
        return random.choice(
            (
                *(key.upper(), key.capitalize(), key + "s", key.removesuffix("s"), key[:place] + key[place + 1 :]),
                *(key.replace("-", "_"), key.replace("_", ""), f" {key}", f"{key}\0", key + "\u200b", "", key * 100),
                key[:place] + "x" + key[place:],
            )
        )

    def _pair_of_another(self) -> tuple[str, Value]:
        """Return a key of another object with a copy of its value: what is mutated next must not be the pool."""
        objects = [
            found for found in _containers(self._random.choice(self._pool)) if isinstance(found, Object) and found
        ]
        key, value = self._random.choice(self._random.choice(objects))
        return key, _copy(value)


_TOKENS = (
    *(b"{", b"}", b"[", b"]", b'"', b",", b":", b"\\", b"\\u0000", b"\\ud800", b"\\u", b"null", b"1e9", b"-", b"/*"),
    *(
        b"\x00",
        b"\xff",
        b"\xc0\x80",
        b"\xed\xa0\x80",
        b"\xef\xbb\xbf",
        b"\xf4\x90\x80\x80",
        b" ",
        b"\n",
        b"\r\n",
        b"\x1f",
    ),
)


def mutated_bytes(random: Random, data: bytes) -> bytes:
    """Return the bytes with one to four changes: flipped bits, cuts, repeats, insertions."""
    changed = bytearray(data)
    for _ in range(random.choice((1, 1, 2, 4))):
        place = random.randrange(len(changed) + 1)
        size = random.choice((1, 1, 2, 8, 64))
        match random.randrange(6):
            case 0 if changed:
                changed[place % len(changed)] ^= 1 << random.randrange(8)
            case 1:
                del changed[place : place + size]
            case 2:
                changed[place:place] = changed[place : place + size] * random.choice((1, 3, 100))
            case 3:
                changed[place:place] = random.randbytes(size)
            case 4 if random.random() < 0.3:
                del changed[place:]
            case _:
                changed[place:place] = random.choice(_TOKENS)
    return bytes(changed)


def _containers(value: Value) -> list[list[Any]]:
    """Return every list and object of a value, the outer ones first."""
    if not isinstance(value, list):
        return []
    found, level = [value], [value]
    while level:
        children = [child[1] if isinstance(one, Object) else child for one in level for child in one]
        level = [child for child in children if isinstance(child, list)]
        found += level
    return found


def _copy(value: Value) -> Value:
    if isinstance(value, Object):
        return Object((key, _copy(child)) for key, child in value)
    return [_copy(child) for child in value] if isinstance(value, list) else value
