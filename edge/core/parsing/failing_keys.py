"""Names the keys of objects in the path of a decoding error; msgspec writes `[...]` in place of each key."""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import msgspec

ANY_KEY = "[...]"
_ERROR = re.compile(r"(.*?)(?: - at (`key` in )?`\$(.*)`)?", re.DOTALL)
_NO_INTEGER = re.compile(r"Expected `[^`]*\bint\b[^`]*`, got `(?:str|float)`")
_NO_OBJECT = re.compile(r"Expected `[^`]*\bobject\b[^`]*`, got `array`")
_EMPTY = '""'
_entries = msgspec.json.Decoder(dict[str, msgspec.Raw])
_items = msgspec.json.Decoder(list[msgspec.Raw])

Decode = Callable[[bytes], object]


MAX_KEYS = 1000
"""Entries of an object in which the failing one is searched. No object may have more where each entry is checked."""


class Failure(NamedTuple):
    """An error of msgspec in parts. `path`: such as `.tags[0][...]`, "" for the whole value.

    `is_of_key`: a key of the object at the path is wrong, and not a value.
    """

    text: str
    path: str
    is_of_key: bool

    @classmethod
    def of(cls, error: msgspec.ValidationError) -> "Failure":
        found = _ERROR.fullmatch(str(error))
        assert found is not None
        return cls(found[1], found[3] or "", bool(found[2]))

    @property
    def is_of_integer(self) -> bool:
        """Whether a text or a fraction stands where an integer is expected."""
        return bool(_NO_INTEGER.fullmatch(self.text))

    @property
    def is_of_object(self) -> bool:
        """Whether a list stands where an object is expected."""
        return bool(_NO_OBJECT.fullmatch(self.text))


class TooManyKeysError(Exception):
    """An object has more than MAX_KEYS entries; the text is its path, with keys by their names."""


def named_path(decode: Decode, raw: bytes, path: str) -> str:
    """Return the path with the keys by their names; `decode` fails with `raw` at the path.

    TooManyKeysError: an object in the path has more than MAX_KEYS entries.
    """
    named, rest = "", path
    steps: list[str | int] = []
    while ANY_KEY in rest:
        before, _, rest = rest.partition(ANY_KEY)
        steps += _steps(before)
        written = path[: len(path) - len(rest)]
        try:
            raw, key = _reduced(decode, raw, steps, written)
        except TooManyKeysError:
            raise TooManyKeysError(named + before) from None
        steps.append(key)
        named += f"{before}.{key or _EMPTY}"
    return named + rest


def _reduced(decode: Decode, raw: bytes, steps: Sequence[str | int], written: str) -> tuple[bytes, str]:
    """Return the JSON with the first failing entry alone in the object at `steps`, and the entry's key.

    `written` is how errors write the path of that entry. The entry is found by bisection, in a few more decodings.
    """
    entries = list(_entries.decode(_at(raw, steps)).items())
    if len(entries) > MAX_KEYS:
        raise TooManyKeysError
    while len(entries) > 1:
        half = entries[: len(entries) // 2]
        entries = half if _fails(decode, _replaced(raw, steps, dict(half)), written) else entries[len(half) :]
    return _replaced(raw, steps, dict(entries)), entries[0][0]


def _fails(decode: Decode, raw: bytes, written: str) -> bool:
    try:
        decode(raw)
    except msgspec.ValidationError as error:
        return Failure.of(error).path.startswith(written)
    return False


def _at(raw: bytes, steps: Sequence[str | int]) -> bytes:
    for step in steps:
        inner = _entries.decode(raw)[step] if isinstance(step, str) else _items.decode(raw)[step]
        raw = bytes(inner)
    return raw


def _replaced(raw: bytes, steps: Sequence[str | int], entries: Mapping[str, msgspec.Raw]) -> bytes:
    """Return the JSON with these entries alone in the object at `steps`."""
    if not steps:
        return msgspec.json.encode(entries)
    step, *rest = steps
    if isinstance(step, str):
        fields = _entries.decode(raw)
        fields[step] = msgspec.Raw(_replaced(bytes(fields[step]), rest, entries))
        return msgspec.json.encode(fields)
    items = _items.decode(raw)
    items[step] = msgspec.Raw(_replaced(bytes(items[step]), rest, entries))
    return msgspec.json.encode(items)


def _steps(path: str) -> list[str | int]:
    """Return the steps of a path such as `.tags[0]`; names of fields have neither a dot nor a bracket."""
    names = filter(None, path.replace("[", ".[").split("."))
    return [int(name[1:-1]) if name.startswith("[") else name for name in names]
