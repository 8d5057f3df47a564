"""Work in proportion to a body is done in a turn of its sender, counted in lines of code: never in seconds.

Every field of every request is sent at its largest. The fields come from the examples of the published documents, which
show every property, as `tests/contract/openapi` checks; so a new field is covered here without a change.
"""

import gc
import hashlib
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import pytest

import edge
from edge.core.parsing.body import MAX_BODY_BYTES
from edge.core.parsing.canonical import MAX_KEYS, MAX_VALUES, canonical_text
from edge.core.request_limiter import RequestLimiter
from edge.openapi import android, ios, v2, v2_examples
from edge.openapi.document import Operation
from protos.registry.v1.apps_pb2 import PLATFORM_IOS
from services.errors import InputError
from testkit.edge.role import EdgeInstallation

_ROOT = str(Path(edge.__file__).parent.parent)
_IN_TURN = "in_turns"
"""The function that does work in turns."""

OUTSIDE = 20_000
"""Upper bound of the lines outside of a turn, some of which are the roles behind the edge: a body has more entries."""

INSIDE = 300_000
"""Upper bound of the lines inside a turn: 30 for each of the 10,000 entries that the largest filter may have."""

INTERFACES: Mapping[str, list[Operation]] = {
    "v2": [operation for operation in v2.OPERATIONS if operation.path.startswith("/v2")],
    "android": android.OPERATIONS,
    "ios": ios.OPERATIONS,
}
_FILL = "@fill@"
_ROOM = MAX_BODY_BYTES - 8 * 1024
_EXAMPLE = 1000
"""Values and keys that an example has at most besides."""
_RARE_ROOM = _ROOM // 4
"""Bytes of what is sent rarely: enough entries to exceed both bounds, in a quarter of the time."""


def repeated(unit: str, opening: str, closing: str, room: int = _RARE_ROOM) -> str:
    """Return a list or an object with so many units as there is room for, and as a body may have values and keys.

    `%d` in the unit is its number.
    """
    size = len(unit % 100_000 if "%" in unit else unit) + 1
    values = 1 + sum(map(unit.count, ",[]{}"))
    count = min(room // size, (MAX_VALUES - _EXAMPLE) // values, (MAX_KEYS - _EXAMPLE) // max(unit.count(":"), 1))
    units = (unit % number for number in range(count)) if "%" in unit else [unit] * count
    return f"{opening}{','.join(units)}{closing}"


COMMON = {
    "lists of numbers": repeated("[1]", "[", "]", _ROOM),
    "digits": repeated('"1"', "[", "]", _ROOM),
}
RARE = {
    "keys of lists": repeated('"%d":["a"]', "{", "}"),
    "numbers": repeated("1", "[", "]"),
    "fractions": repeated("1.0", "[", "]"),
    "lists of digits": repeated('["1"]', "[", "]"),
    "texts": repeated('"%d"', "[", "]"),
    "lists of texts": repeated('["a","b"]', "[", "]"),
    "empty lists": repeated("[]", "[", "]"),
    "objects": repeated('{"a":"1"}', "[", "]"),
    "keys": repeated('"k%d":1', "{", "}"),
    "keys of digits": repeated('"k%d":"1"', "{", "}"),
    "short keys": repeated('"t%d":{}', "{", "}"),
    "a text": f'"{"x" * _RARE_ROOM}"',
    "a text of digits": f'"{"1" * _RARE_ROOM}"',
    "a number": "1" * _RARE_ROOM,
    "escapes": f'"{chr(92) * 2 * (_RARE_ROOM // 2)}"',
    "NUL": f'["{chr(92)}u0000",{repeated("1", "[", "]")}]',
}
"""What is sent by `make test-long` alone, as all that the interfaces with many fields are sent."""

_UNREAD = ("/v2/errortoken", "/getAckInfo")
"""Paths of which nothing is read but the app: the second is refused until the operator enables it."""

_LONG = pytest.mark.long
_BEGUN_EARLY = pytest.mark.timeout(600)
"""With a bound of its own a long test is a group by itself: as one group these kept a worker alone at the end."""

_EVERY_INTERFACE = ["ios", *(pytest.param(name, marks=_LONG) for name in INTERFACES if name != "ios")]
_OF_BOTH = ("keys of lists", "lists of texts", "short keys", "a text of digits")
"""What is rare and sent to every interface; the rest goes to the Android interface, which reads the same lists and
filters as v2, before a release alone."""


def _cases() -> Iterator[Any]:
    for interface in INTERFACES:
        for largest in {**COMMON, **RARE}:
            is_long = interface != "ios" or largest in RARE
            is_further = interface == "android" and largest in RARE and largest not in _OF_BOTH
            marks = [_LONG, _BEGUN_EARLY] * is_long + [pytest.mark.seeds] * is_further
            yield pytest.param(interface, largest, marks=marks)


class Steps:
    """The lines of this project's code that were run, in turns and outside of them."""

    def __init__(self) -> None:
        self.inside = self.outside = 0

    @contextmanager
    def counted(self) -> Iterator[None]:
        before = sys.gettrace()
        sys.settrace(self._on_call)
        try:
            yield
        finally:
            sys.settrace(before)

    def _on_call(self, frame: FrameType, event: str, argument: object) -> Any:
        if not _is_ours(frame):
            return None
        return self._on_line_inside if _is_in_turn(frame) else self._on_line_outside

    def _on_line_inside(self, frame: FrameType, event: str, argument: object) -> Any:
        self.inside += 1
        return self._on_line_inside

    def _on_line_outside(self, frame: FrameType, event: str, argument: object) -> Any:
        self.outside += 1
        return self._on_line_outside


def _is_ours(frame: FrameType) -> bool:
    name = frame.f_code.co_filename
    return name.startswith(_ROOT) and "/tests/" not in name and "/testkit/" not in name and "/.venv/" not in name


def _is_in_turn(frame: FrameType) -> bool:
    caller: FrameType | None = frame.f_back
    while caller is not None and _is_ours(caller):
        if caller.f_code.co_name == _IN_TURN:
            return True
        caller = caller.f_back
    return False


class Field(NamedTuple):
    """A field of a request. `body`: the request as JSON with `_FILL` in place of its value; `at`: its path."""

    method: str
    path: str
    at: str
    body: str


def fields(interface: str) -> Iterator[Field]:
    """Yield every field of the interface's requests once, and one that no request has."""
    seen = set()
    for operation in INTERFACES[interface]:
        for example in operation.examples.values():
            for path in [*members(example), ("unknown",)]:
                named = tuple("" if isinstance(step, int) else step for step in path)
                key = (operation.request, named)
                if key not in seen and path != ("sign",):
                    seen.add(key)
                    body = json.dumps(replaced(example, path, _FILL))
                    yield Field(operation.method.upper(), operation.path, ".".join(map(str, path)), body)


def members(value: Any, *path: Any) -> Iterator[tuple[Any, ...]]:
    steps = value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    for step in steps:
        yield (*path, step)
        yield from members(value[step], *path, step)


def replaced(value: Any, path: tuple[Any, ...], by: Any) -> Any:
    if not path:
        return by
    copy: Any = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = replaced(copy[path[0]] if path[0] != "unknown" else None, path[1:], by)
    return copy


class Sender:
    """An app server of an Android app and two iOS apps."""

    def __init__(self, installation: EdgeInstallation, appkeys: Mapping[str, str]) -> None:
        self._installation = installation
        self._appkeys = appkeys
        self._clients = {"v2": installation.http, "android": installation.android, "ios": installation.ios}

    @property
    def appkeys(self) -> Sequence[str]:
        return list(self._appkeys.values())

    async def send(self, interface: str, field: Field, fill: str, *, is_signed: bool = True) -> dict[str, Any]:
        body = field.body
        for example, appkey in self._appkeys.items():
            body = body.replace(f'"{example}"', f'"{appkey}"')
        raw = body.replace(f'"{_FILL}"', fill).encode()
        assert len(raw) <= MAX_BODY_BYTES
        if is_signed:
            secrets = [self._installation.secrets[appkey] for appkey in self._appkeys.values() if appkey in body]
            raw = _signed(raw, secrets)
        headers = {"Connection": "close"}  # a kept one ends while signing holds the event loop
        answer = await self._clients[interface].request(field.method, field.path, content=raw, headers=headers)
        found: dict[str, Any] = answer.json()
        return found


def _signed(raw: bytes, secrets: list[str]) -> bytes:
    """Sign by the service's own code, because `testkit.signing` is slow; unsigned where the body has no text."""
    try:
        text = canonical_text(raw)
    except InputError:
        return raw
    sign = hashlib.md5("".join([text, *secrets]).encode(), usedforsecurity=False).hexdigest()
    return raw.replace(f'"sign": "{v2_examples.SIGN}"'.encode(), f'"sign": "{sign}"'.encode())


@pytest.fixture(autouse=True)
def no_collection() -> Iterator[None]:
    """The garbage collector would take most of the time that signing takes."""
    gc.disable()
    yield
    gc.enable()


@pytest.fixture
async def sender(installation: EdgeInstallation) -> Sender:
    keys = [(await installation.app()).appkey, *[(await installation.app(PLATFORM_IOS)).appkey for _ in range(2)]]
    examples = (v2_examples.ANDROID, v2_examples.IOS, v2_examples.SECOND_IOS)
    return Sender(installation, dict(zip(examples, keys, strict=True)))


@pytest.mark.parametrize(("interface", "largest"), list(_cases()))
async def test_work_in_proportion_to_a_body_is_done_in_a_turn(sender: Sender, interface: str, largest: str) -> None:
    too_many = []
    for field in fields(interface):
        steps = Steps()
        with steps.counted():
            answer = await sender.send(interface, field, {**COMMON, **RARE}[largest])
        if steps.outside > OUTSIDE or steps.inside > INSIDE:
            too_many.append((field.path, field.at, steps.outside, steps.inside, str(answer)[:200]))
    assert not too_many


@pytest.mark.parametrize("interface", _EVERY_INTERFACE)
async def test_turns_count_for_the_address_until_the_sign_is_verified_and_then_for_the_app(
    sender: Sender, interface: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns: list[str] = []
    in_turns = RequestLimiter.in_turns

    async def noted(limiter: RequestLimiter, key: str, size: int, steps: Any) -> Any:
        turns.append(key)
        return await in_turns(limiter, key, size, steps)

    monkeypatch.setattr(RequestLimiter, "in_turns", noted)
    whole = [field for field in fields(interface) if field.at == "unknown"]
    assert len(whole) == len({operation.request for operation in INTERFACES[interface]})
    for field in whole:
        turns.clear()
        answer = await sender.send(interface, field, RARE["NUL"], is_signed=False)
        assert (answer["result"], turns) == (401, ["127.0.0.1"]), field
        turns.clear()
        answer = await sender.send(interface, field, RARE["NUL"])
        assert (answer["result"] != 401, turns[:1]) == (True, ["127.0.0.1"]), (field, answer)
        of_app = [turn in [f"app {appkey}" for appkey in sender.appkeys] for turn in turns[1:]]
        assert of_app == [True] * (field.path not in _UNREAD), field
