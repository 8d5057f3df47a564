"""What a rebuild of the registry keeps of the state that it replaces: the numbers that devices hold keys of."""

from pathlib import Path

import pytest
from pyroaring import BitMap

from protos.registry.v1.apps_pb2 import PLATFORM_ANDROID, App, Revocations
from protos.registry.v1.devices_pb2 import Device
from services.domain.topics import DEVICE_COMMANDS
from services.errors import UnavailableError
from services.log.port import Record
from services.registry.given_numbers import GIVEN_NUMBERS_FILE, NextNumbers, keep_given, load_given
from services.registry.rules import DeviceRules
from services.registry.store import DEVICES_DDL, DEVICES_FILE, DeviceTable
from services.replica.sqlite_store import SqliteStore
from tests.services.registry.conftest import register


def state(directory: Path, devices: NextNumbers, reserved_to: int = 0) -> Path:
    """Make a state with this many devices by app and partition, and numbers of app 1 reserved in partition 3."""
    store = SqliteStore(directory / DEVICES_FILE, DEVICES_DDL)
    table = DeviceTable(store)
    for (appkey, partition), count in devices.items():
        for number in range(count):
            token = f"{partition}-{number}"
            table.put(Device(appkey=appkey, token=token, partition=partition, number=number))
    if reserved_to:
        numbers = BitMap(range(5, reserved_to)).serialize()
        table.revoke(Revocations(appkey="1", partition=3, numbers=numbers, lost=numbers))
    store.close()
    return directory


def test_numbers_beyond_the_rebuilt_state_are_kept_over_any_number_of_rebuilds(tmp_path: Path) -> None:
    former = state(tmp_path / "former", {("1", 0): 4, ("1", 3): 5, ("2", 0): 7}, reserved_to=9)
    once = state(tmp_path / "once", {("1", 0): 4, ("2", 0): 6})
    keep_given(former, once)
    assert load_given(once) == {("1", 3): 9, ("2", 0): 7}
    twice = state(tmp_path / "twice", {("1", 0): 4, ("2", 0): 8})
    keep_given(once, twice)
    assert load_given(twice) == {("1", 3): 9}
    keep_given(twice, state(tmp_path / "equal", {("1", 0): 4, ("1", 3): 9, ("2", 0): 8}))
    assert not (tmp_path / "equal" / GIVEN_NUMBERS_FILE).exists()


def test_a_state_that_is_made_for_the_first_time_keeps_nothing(tmp_path: Path) -> None:
    rebuilt = state(tmp_path / "rebuilt", {("1", 0): 4})
    keep_given(tmp_path / "none", rebuilt)
    assert load_given(rebuilt) == {}


def test_a_damaged_file_ends_the_start_with_its_name(tmp_path: Path) -> None:
    (tmp_path / GIVEN_NUMBERS_FILE).write_text("[[")
    with pytest.raises(UnavailableError, match=GIVEN_NUMBERS_FILE):
        load_given(tmp_path)


def test_no_device_gets_a_number_that_was_kept(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / DEVICES_FILE, DEVICES_DDL)
    app = App(appkey="1", platform=PLATFORM_ANDROID)
    rules = DeviceRules(DeviceTable(store), {"1": app}.get, 1, given={("1", 0): 12})
    command = register(app, "t")
    (fact,) = rules.decide(Record(DEVICE_COMMANDS.name, 0, 7, b"1/t", b""), command)
    assert fact.message.device.number == 12
    store.close()
