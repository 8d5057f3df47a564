"""Random commands on the devices of one partition, compared with a plain model."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from protos.registry.v1.apps_pb2 import PLATFORM_ANDROID, App
from protos.registry.v1.devices_pb2 import AddStags, AddTags, DeviceCommand, RemoveDevice, RemoveStags, RemoveTags
from services.domain.topics import DEVICE_COMMANDS, DEVICES, device_key
from services.log.port import Record
from services.registry.rules import DeviceRules
from services.registry.store import DEVICES_DDL, DeviceTable
from services.replica.sqlite_store import SqliteStore
from testkit.examples import examples
from tests.services.registry.conftest import NOON_MS, clear_alias, command, register, set_alias

APPS = {appkey: App(appkey=appkey, platform=PLATFORM_ANDROID) for appkey in ("1000000001", "1000000002")}
UNKNOWN = "1999999999"
NAMES = st.sampled_from(["", "alice", "bob"])
TAGS = st.lists(st.integers(-2, 2), max_size=3)
STAGS = st.lists(st.sampled_from(["a", "b", "新"]), max_size=3)


@dataclass
class Model:
    """A device as the model stores it."""

    number: int
    model: str = ""
    alias: str | None = None
    tags: set[int] = field(default_factory=set)
    stags: set[str] = field(default_factory=set)
    registered_ms: int = 0
    removed: bool = False


CHANGES = st.one_of(
    st.tuples(st.just("register"), st.sampled_from(["", "X1", "X2"])),
    st.tuples(st.just("set_alias"), NAMES),
    st.tuples(st.just("clear_alias"), st.none() | NAMES),
    st.tuples(st.sampled_from(["add_tags", "remove_tags"]), TAGS),
    st.tuples(st.sampled_from(["add_stags", "remove_stags"]), STAGS),
    st.tuples(st.just("remove"), st.sampled_from([0, 3, 30])),
)
COMMANDS = st.lists(
    st.tuples(st.sampled_from([*APPS, UNKNOWN]), st.sampled_from(["t1", "t2", "t3", "t4"]), CHANGES), max_size=40
)


def as_command(appkey: str, token: str, kind: str, value: Any, at_ms: int) -> DeviceCommand:
    match kind:
        case "register":
            return register(appkey, token, at_ms, model=value)
        case "set_alias":
            return set_alias(appkey, token, value, at_ms)
        case "clear_alias":
            return clear_alias(appkey, token, value)
        case "add_tags":
            return command(appkey, token, add_tags=AddTags(tags=value))
        case "remove_tags":
            return command(appkey, token, remove_tags=RemoveTags(tags=value))
        case "add_stags":
            return command(appkey, token, add_stags=AddStags(stags=value))
        case "remove_stags":
            return command(appkey, token, remove_stags=RemoveStags(stags=value))
        case _:
            before_ms = NOON_MS + value if value else 0
            return command(appkey, token, at_ms=at_ms, remove=RemoveDevice(registered_before_ms=before_ms))


def apply_to_model(
    devices: dict[tuple[str, str], Model], appkey: str, token: str, kind: str, value: Any, at_ms: int
) -> None:
    """Apply the command to the model."""
    device = devices.get((appkey, token))
    if kind == "register" and appkey in APPS:
        if device is None or device.removed:
            number = device.number if device else sum(known == appkey for known, _ in devices)
            device = devices[appkey, token] = Model(number, registered_ms=at_ms)
        device.model = value or device.model
    elif device is not None and not device.removed:
        match kind:
            case "set_alias":
                device.alias = value or device.alias
            case "clear_alias":
                device.alias = None if value in (None, device.alias) else device.alias
            case "add_tags":
                device.tags |= set(value)
            case "remove_tags":
                device.tags -= set(value)
            case "add_stags":
                device.stags |= set(value)
            case "remove_stags":
                device.stags -= set(value)
            case "remove":
                device.removed = not value or device.registered_ms < NOON_MS + value


@contextmanager
def empty_rules() -> Iterator[tuple[DeviceRules, SqliteStore]]:
    with tempfile.TemporaryDirectory() as directory:
        store = SqliteStore(Path(directory) / "devices.sqlite", DEVICES_DDL)
        yield DeviceRules(DeviceTable(store), APPS.get, 1), store
        store.close()


@settings(max_examples=examples(100), deadline=None)
@given(COMMANDS)
def test_devices_are_as_in_the_model(drawn: list[tuple[str, str, tuple[str, Any]]]) -> None:
    model: dict[tuple[str, str], Model] = {}
    facts = []
    with empty_rules() as (rules, store), empty_rules() as (others, rebuilt):
        for offset, (appkey, token, (kind, value)) in enumerate(drawn):
            what = as_command(appkey, token, kind, value, NOON_MS + offset)
            for fact in rules.decide(Record(DEVICE_COMMANDS.name, 0, offset, b"", b""), what):
                assert (fact.topic, fact.partition, fact.key) == (DEVICES, 0, device_key(appkey, token))
                rules.apply(Record(DEVICES.name, 0, -1, b"", b""), fact.message)
                facts.append(fact.message)
            apply_to_model(model, appkey, token, kind, value, NOON_MS + offset)
            assert stored(store) == model
        for message in facts:
            others.apply(Record(DEVICES.name, 0, -1, b"", b""), message)
        assert rebuilt.digest() == store.digest()


def stored(store: SqliteStore) -> dict[tuple[str, str], Model]:
    """Return the stored devices as models."""
    devices = {}
    table = DeviceTable(store)
    for appkey, token in store.rows.execute("SELECT appkey, token FROM devices").fetchall():
        device = table.find(appkey, token)
        assert device is not None
        assert list(device.tags) == sorted(device.tags)
        assert list(device.stags) == sorted(device.stags)
        devices[appkey, token] = Model(
            device.number,
            device.attributes.model,
            device.alias if device.HasField("alias") else None,
            set(device.tags),
            set(device.stags),
            device.registered_ms,
            bool(device.removed_ms),
        )
    return devices
