"""The role context of a process: built from settings, and always closed."""

import asyncio
from pathlib import Path

import pytest

from protos.registry.v1.apps_pb2 import App, AppFact, KeyFingerprint
from protos.registry.v1.devices_pb2 import DeviceCommand
from services.domain.apps import fingerprint_key
from services.domain.master_key import (
    KeyPurpose,
    MasterKey,
    create_master,
    next_master_file,
    read_masters,
    replace_master,
)
from services.domain.role_context import DEFAULT_ADDRESSES, connected_peers, open_log, role_addresses, role_context
from services.domain.sealed_log import SealedLog
from services.domain.sealing import Sealer
from services.domain.settings import Settings, SettingsError
from services.domain.topics import DEVICE_COMMANDS, TOPICS, decode
from services.errors import CarillonError, UnavailableError
from services.log.port import NewRecord, Partition
from services.net.rpc.channel import Channel
from services.process import background
from services.replica.peers import Peers
from testkit.persons import key_ring
from testkit.waiting import until


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    create_master(tmp_path / "master.key")
    return Settings(data_dir=str(tmp_path), partitions=2)


async def test_the_apps_are_known_on_entry_and_the_log_is_closed_on_exit(settings: Settings) -> None:
    async with role_context(settings, Peers({}, TOPICS)) as context:
        fact = AppFact(app=App(appkey="1000000001"))
        await context.log.append([NewRecord("apps", 0, b"1000000001", fact.SerializeToString())])
        sealed = context.keys.seal("s", "1000000001")
    with pytest.raises(UnavailableError):
        await context.log.append([NewRecord("apps", 0, b"1000000001", b"")])
    async with role_context(settings, Peers({}, TOPICS)) as context:
        assert context.apps.get("1000000001") is not None
        assert context.keys.open(sealed, "1000000001") == "s"


async def test_sealed_records_are_opened_where_the_keys_of_persons_are(settings: Settings, tmp_path: Path) -> None:
    ring = key_ring(tmp_path / "keys" / "persons")
    partition = Partition(DEVICE_COMMANDS.name, 0)
    value = DeviceCommand(appkey="1", token="t").SerializeToString()
    async with role_context(settings, Peers({}, TOPICS)) as context:
        sealing = SealedLog(context.log, Sealer(ring), seals=True)
        await sealing.append([NewRecord(DEVICE_COMMANDS.name, 0, b"k", value)])
        await context.log.append([NewRecord(DEVICE_COMMANDS.name, 0, b"k", value)])
        reader = await context.log.open({partition: 0})
        records = await reader.read()
        await reader.close()
    assert [decode(record).token for record in records] == ["t", "t"]
    assert [record.value == value for record in records] == [False, True], "nothing is sealed yet"


async def test_an_error_inside_is_raised_and_all_is_closed(settings: Settings) -> None:
    with pytest.raises(KeyError, match="mine"):
        async with role_context(settings, Peers({}, TOPICS)) as context:
            raise KeyError("mine")
    with pytest.raises(UnavailableError):
        await context.log.append([NewRecord("apps", 0, b"1000000001", b"")])
    assert not [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]


async def test_the_first_process_makes_the_master_key_and_no_other_one_does(tmp_path: Path) -> None:
    """A machine that joins an installation, or has lost its key file, must not make another key."""
    settings = Settings(data_dir=str(tmp_path), partitions=2)
    async with role_context(settings, Peers({}, TOPICS), creates_master=True):
        key = settings.key_file.read_bytes()
    settings.key_file.unlink()
    with pytest.raises(CarillonError, match=r"no master key is at .*, but this installation began with one"):
        async with role_context(settings, Peers({}, TOPICS), creates_master=True):
            pass
    assert not settings.key_file.exists()
    settings.key_file.write_bytes(key)
    async with role_context(settings, Peers({}, TOPICS), creates_master=True):
        pass


@pytest.mark.parametrize("purpose", list(KeyPurpose))
async def test_a_key_of_another_installation_is_refused_at_the_start(settings: Settings, purpose: KeyPurpose) -> None:
    """Also where the process has this key alone, such as a gateway that has the device keys."""
    async with role_context(settings, Peers({}, TOPICS), [purpose]):
        pass
    settings.key_file.write_bytes(bytes(32))
    with pytest.raises(CarillonError, match=f"the key of {purpose.value} is not the one with which this installation"):
        async with role_context(settings, Peers({}, TOPICS), [purpose]):
            pass


async def test_a_key_that_does_not_open_the_secrets_of_an_older_installation_is_refused(settings: Settings) -> None:
    log = await open_log(settings)
    app = App(appkey="1000000001", sealed_secret=MasterKey(bytes(32)).seal("s", "1000000001"))
    await log.append([NewRecord("apps", 0, b"1000000001", AppFact(app=app).SerializeToString())])
    await log.close()
    with pytest.raises(CarillonError, match="sealed with another master key"):
        async with role_context(settings, Peers({}, TOPICS)):
            pass


def test_role_addresses_come_from_the_settings() -> None:
    env = {"CARILLON_TARGETING_ADDR": "t-0:1, t-1:1"}
    assert role_addresses("targeting", env) == ["t-0:1", "t-1:1"]
    assert role_addresses("registry", env) == [DEFAULT_ADDRESSES["registry"]]
    with pytest.raises(SettingsError, match="CARILLON_TARGETING_ADDR"):
        role_addresses("targeting", {"CARILLON_TARGETING_ADDR": "t-0"})


async def test_peers_over_sockets_have_a_channel_to_each_instance() -> None:
    peers = connected_peers({"CARILLON_TARGETING_ADDR": "127.0.0.1:1,127.0.0.1:2"}, None)
    counts: dict[str, int] = {role: len(peers.all(role)) for role in DEFAULT_ADDRESSES}
    assert counts == {role: 2 if role == "targeting" else 1 for role in DEFAULT_ADDRESSES}
    first: Channel = peers.owner("targeting", 2)
    assert first is peers.all("targeting")[0]
    await peers.close()


def rotated(settings: Settings, *, finished: bool = False) -> list[NewRecord]:
    """Return the records of a rotation from the master key of the settings to the next one, which is made."""
    create_master(next_master_file(settings.key_file))
    old, new = (MasterKey(master) for master in read_masters(settings.key_file))
    records = []
    for purpose in KeyPurpose:
        noted = KeyFingerprint(
            purpose=purpose.name,
            fingerprint=new.fingerprint(purpose),
            predecessor=old.fingerprint(purpose),
            switched_ms=1_800_000_000_000,
            predecessor_dropped=finished,
        )
        records.append(NewRecord("apps", 0, fingerprint_key(noted), AppFact(key_fingerprint=noted).SerializeToString()))
    return records


async def started(settings: Settings, purpose: KeyPurpose) -> None:
    async with role_context(settings, Peers({}, TOPICS), [purpose]):
        pass


@pytest.mark.parametrize("purpose", list(KeyPurpose))
async def test_during_a_rotation_a_process_needs_both_keys_and_says_which_it_lacks(
    settings: Settings, purpose: KeyPurpose
) -> None:
    master, following = settings.key_file, next_master_file(settings.key_file)
    async with role_context(settings, Peers({}, TOPICS)):
        rotated(settings)
    old, new = master.read_bytes(), following.read_bytes()
    following.unlink()
    master.write_bytes(new)
    with pytest.raises(CarillonError, match="While the keys rotate it needs the present and the next key"):
        await started(settings, purpose)  # only the new one before
    master.write_bytes(old)
    following.write_bytes(new)
    async with role_context(settings, Peers({}, TOPICS)) as context:
        await context.log.append(rotated(settings))
    await started(settings, purpose)
    following.unlink()
    with pytest.raises(CarillonError, match="keys were rotated at 2027-01-15 08:00:00 UTC"):
        await started(settings, purpose)  # only the old one after
    master.write_bytes(new)
    with pytest.raises(CarillonError, match="is missing, and it is accepted until the rotation"):
        await started(settings, purpose)  # only the new one before the end
    master.write_bytes(old)
    following.write_bytes(new)
    async with role_context(settings, Peers({}, TOPICS)) as context:
        await context.log.append(rotated(settings, finished=True))
    master.write_bytes(new)
    following.unlink()
    await started(settings, purpose)


async def test_a_running_process_uses_the_new_key_from_its_file_or_ends_without_it(settings: Settings) -> None:
    present = settings.key_file.read_bytes()
    async with role_context(settings, Peers({}, TOPICS)) as context:
        sealed = context.keys.seal("s", "1")
        await context.log.append(rotated(settings))
        await context.apps.refresh()
        new = MasterKey(next_master_file(settings.key_file).read_bytes())
        assert (new.open(context.keys.seal("n", "1"), "1"), context.keys.open(sealed, "1")) == ("n", "s")
        assert not background.ended()
        await context.log.append(rotated(settings, finished=True))
        await context.apps.refresh()
        with pytest.raises(CarillonError, match="another master key"):
            context.keys.open(sealed, "1")
    settings.key_file.write_bytes(present)
    replace_master(settings.key_file)
    async with role_context(settings, Peers({}, TOPICS)) as context:
        records = rotated(settings)
        next_master_file(settings.key_file).unlink()
        await context.log.append(records)
        await context.apps.refresh()
        with pytest.raises(UnavailableError, match="not been given all keys"):
            context.keys.seal("s", "1")

        async def has_ended() -> bool:
            await asyncio.sleep(0)
            return "keys" in background.ended()

        await until(has_ended)
        assert "Give this process the file that `carillon keys export` writes now" in background.ended()["keys"]
