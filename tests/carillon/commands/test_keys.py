"""`carillon keys export`, and the processes that read what it writes."""

import base64
import itertools
import json
import os
import stat
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result
from structlog.testing import capture_logs

from carillon.commands.keys import has_next_keys, keys
from carillon.roles import ROLES, role_definition
from protos.runtime.v1.processes_pb2 import HeldKeys, ProcessStatus
from services.domain.master_key import KeyPurpose, MasterKey, OptionalPurpose, derive, fingerprint_of, load_keys
from services.domain.person_key_topic import wrapping_keys
from services.domain.settings import Settings
from services.errors import CarillonError
from services.replica.status_board import SILENT_MS, Process
from testkit.faults.full_disk import full_disk


def export(tmp_path: Path, *options: str) -> Result:
    """Run `carillon keys export` in `tmp_path` with the master key there; options without `--` are files there."""
    arguments = [option if option.startswith("--") else str(tmp_path / option) for option in options]
    env = {"CARILLON_MASTER_KEY_FILE": str(tmp_path / "master.key")}
    return CliRunner().invoke(keys, ["export", *arguments], env=env)


def exported(tmp_path: Path, *options: str) -> "dict[KeyPurpose, Path]":
    """Export both keys of the master key in `tmp_path`, and return the files."""
    result = export(tmp_path, "--device-keys", "device.key", "--secrets-key", "secrets.key", *options)
    if result.exit_code:
        raise CarillonError(result.output)
    return {KeyPurpose.DEVICES: tmp_path / "device.key", KeyPurpose.SECRETS: tmp_path / "secrets.key"}


def test_a_process_with_exported_keys_needs_no_master_key(tmp_path: Path) -> None:
    master = MasterKey.load(tmp_path / "master.key")
    sealed, key = master.seal("s", "1"), master.device_key("1", "t", 7)
    for files in (exported(tmp_path), exported(tmp_path)):
        assert {stat.S_IMODE(file.stat().st_mode) for file in files.values()} == {0o600}
    (tmp_path / "master.key").unlink()
    settings = Settings(
        data_dir=str(tmp_path / "data"),
        device_keys_file=str(files[KeyPurpose.DEVICES]),
        secrets_key_file=str(files[KeyPurpose.SECRETS]),
    )
    loaded = load_keys(settings, list(KeyPurpose))
    assert (loaded.open(sealed, "1"), loaded.device_number("1", "t", key)) == ("s", 7)
    assert not (tmp_path / "data").exists()
    assert load_keys(settings, [KeyPurpose.DEVICES]).device_number("1", "t", key) == 7


def test_a_file_that_is_not_the_named_key_is_refused(tmp_path: Path) -> None:
    files = exported(tmp_path, "--create")
    swapped = Settings(device_keys_file=str(files[KeyPurpose.SECRETS]))
    master = Settings(device_keys_file=str(tmp_path / "master.key"))
    missing = Settings(device_keys_file=str(tmp_path / "none"))
    for settings in (swapped, master):
        with pytest.raises(CarillonError, match="holds no key of device keys"):
            load_keys(settings, [KeyPurpose.DEVICES])
    with pytest.raises(CarillonError, match="cannot be read"):
        load_keys(missing, [KeyPurpose.DEVICES])


def test_an_export_without_a_master_key_makes_one_only_when_told_to(tmp_path: Path) -> None:
    with pytest.raises(CarillonError, match="no master key is at"):
        exported(tmp_path)
    assert list(tmp_path.iterdir()) == []
    created = export(tmp_path, "--device-keys", "device.key", "--create")
    assert created.output.startswith(f"The master key is in {tmp_path / 'master.key'}. Keep it: ")
    assert len((tmp_path / "master.key").read_bytes()) == 32


@pytest.mark.parametrize("name", ["master.key", "secrets.key", "shop.json", "empty"])
def test_an_export_replaces_no_file_that_holds_anything_but_that_key(name: str, tmp_path: Path) -> None:
    exported(tmp_path, "--create")
    (tmp_path / "shop.json").write_text("{}")
    (tmp_path / "empty").touch()
    before = {file: file.read_bytes() for file in tmp_path.iterdir()}
    refused = export(tmp_path, "--device-keys", name)
    assert (refused.exit_code, refused.output) == (
        1,
        f"Error: {tmp_path / name} exists and holds no key of device keys: name another file\n",
    )
    assert {file: file.read_bytes() for file in tmp_path.iterdir()} == before


def test_an_export_of_both_keys_into_one_file_is_refused(tmp_path: Path) -> None:
    MasterKey.load(tmp_path / "master.key")
    (tmp_path / "link").symlink_to("same.key")
    refused = export(tmp_path, "--device-keys", "same.key", "--secrets-key", "link")
    assert (refused.exit_code, "name the same file" in refused.output) == (2, True)
    assert not (tmp_path / "same.key").exists()


def test_an_export_replaces_the_key_of_a_former_installation(tmp_path: Path) -> None:
    files = exported(tmp_path, "--create")
    former = files[KeyPurpose.DEVICES].read_bytes()
    (tmp_path / "master.key").unlink()
    exported(tmp_path, "--create")
    assert files[KeyPurpose.DEVICES].read_bytes() != former
    assert stat.S_IMODE(files[KeyPurpose.DEVICES].stat().st_mode) == 0o600
    assert sorted(os.listdir(tmp_path)) == ["device.key", "master.key", "secrets.key"]


def test_an_export_that_cannot_write_says_so_in_one_line_and_keeps_the_old_file(tmp_path: Path) -> None:
    missing = tmp_path / "none" / "device.key"
    MasterKey.load(tmp_path / "master.key")
    assert export(tmp_path, "--device-keys", "none/device.key").output == (
        f"Error: the key file {missing} cannot be written: No such file or directory\n"
    )
    old = f"carillon key of device keys: {base64.b64encode(bytes(32)).decode()}\n"
    (tmp_path / "device.key").write_text(old)
    with full_disk(8):
        full = export(tmp_path, "--device-keys", "device.key")
    assert (full.exit_code, "cannot be written: " in full.output) == (1, True)
    assert (tmp_path / "device.key").read_text() == old
    assert sorted(os.listdir(tmp_path)) == ["device.key", "master.key"]


def test_a_master_key_that_cannot_be_created_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(CarillonError, match=r"master\.key cannot be written: File exists"):
        MasterKey.load(tmp_path / "file" / "master.key")


@pytest.mark.parametrize(("mode", "is_warned_of"), [(0o600, False), (0o400, False), (0o440, False), (0o644, True)])
def test_a_key_file_that_every_user_can_read_is_used_with_a_warning(
    mode: int, is_warned_of: bool, tmp_path: Path
) -> None:
    files = exported(tmp_path, "--create")
    master, device = tmp_path / "master.key", files[KeyPurpose.DEVICES]
    for file in (master, device):
        file.chmod(mode)
    with capture_logs() as logged:
        load_keys(Settings(master_key_file=str(master), device_keys_file=str(device)), list(KeyPurpose))
    expected = [(str(file), f"chmod 600 {file}") for file in (device, master)] if is_warned_of else []
    assert [(line["file"], line["fix"]) for line in logged] == expected


def test_the_help_of_an_export_names_the_roles_that_need_each_key() -> None:
    for option, purpose in (("device_keys", KeyPurpose.DEVICES), ("secrets_key", KeyPurpose.SECRETS)):
        (described,) = (given for given in keys.commands["export"].params if given.name == option)
        assert isinstance(described, click.Option)
        named = {name for name in ROLES if name in str(described.help)}
        assert named == {name for name in ROLES if purpose in role_definition(name).keys}


def run(tmp_path: Path, *arguments: str) -> Result:
    return CliRunner().invoke(keys, arguments, env={"CARILLON_MASTER_KEY_FILE": str(tmp_path / "master.key")})


def test_while_the_keys_rotate_the_files_hold_both_keys(tmp_path: Path) -> None:
    assert "no master key is at" in run(tmp_path, "prepare").output
    files = exported(tmp_path, "--create")
    first = json.loads(run(tmp_path, "prepare", "--json").output)
    assert json.loads(run(tmp_path, "prepare", "--json").output) == first, "a repetition makes no other key"
    old, new = MasterKey.load(tmp_path / "master.key"), MasterKey.load(tmp_path / "master.key.next")
    next_master = (tmp_path / "master.key.next").read_bytes()
    persons = fingerprint_of(derive(next_master, OptionalPurpose.PERSONS))
    of_new = [new.fingerprint(KeyPurpose.DEVICES), new.fingerprint(KeyPurpose.SECRETS), persons]
    assert first["to"] == b"".join(of_new).hex()
    assert stat.S_IMODE((tmp_path / "master.key.next").stat().st_mode) == 0o600
    exported(tmp_path)
    by_files = Settings(
        master_key_file=str(tmp_path / "none"),
        device_keys_file=str(files[KeyPurpose.DEVICES]),
        secrets_key_file=str(files[KeyPurpose.SECRETS]),
    )
    for settings in (by_files, Settings(master_key_file=str(tmp_path / "master.key"))):
        loaded = load_keys(settings, list(KeyPurpose))
        assert loaded.device_key("1", "t", 7) == old.device_key("1", "t", 7), "the present one issues"
        assert loaded.device_number("1", "t", new.device_key("1", "t", 7)) == 7
        assert [loaded.open(each.seal("s", "1"), "1") for each in (old, new)] == ["s", "s"]
    files[KeyPurpose.DEVICES].write_text(files[KeyPurpose.DEVICES].read_text() + "another line\n")
    with pytest.raises(CarillonError, match="holds no key of device keys"):
        load_keys(by_files, [KeyPurpose.DEVICES])


@pytest.mark.parametrize("killed_after", [0, 1, 2], ids=["not at all", "the former is kept", "the next has its place"])
def test_the_next_master_key_takes_its_place_whole_and_the_former_is_kept(
    tmp_path: Path, killed_after: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = (
        MasterKey.load(tmp_path / name).fingerprint(KeyPurpose.SECRETS) for name in ("master.key", "master.key.next")
    )
    replace, moves = os.replace, itertools.count(1)

    def killed(source: str, target: str) -> None:
        replace(source, target)
        if next(moves) == killed_after:
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(os, "replace", killed)
        run(tmp_path, "adopt")
    for _ in range(2):
        adopted = run(tmp_path, "adopt")
        assert f"The present master key is in {tmp_path / 'master.key'}." in adopted.output
        assert f"The former master key is in {tmp_path / 'master.key.former'}." in adopted.output
    assert sorted(os.listdir(tmp_path)) == ["master.key", "master.key.former"]
    found = [
        MasterKey.load(tmp_path / name).fingerprint(KeyPurpose.SECRETS) for name in ("master.key", "master.key.former")
    ]
    assert found == [new, old]


def test_a_rotation_in_a_cluster_needs_the_next_keys_by_name_or_by_file(tmp_path: Path) -> None:
    env = {"CARILLON_MASTER_KEY_FILE": str(tmp_path / "master.key"), "CARILLON_REGISTRY_ADDR": "127.0.0.1:1"}
    create = CliRunner().invoke(keys, ["rotate"], env=env)
    assert "no next master key is at" in create.output
    assert os.listdir(tmp_path) == [], "no key is made that other machines do not have"
    for wrong in (["--to", "12"], ["--to", "x"], ["--to", "00", "--finish"]):
        assert CliRunner().invoke(keys, ["rotate", *wrong], env=env).exit_code == 2
    named = CliRunner().invoke(keys, ["rotate", "--to", "00" * 48], env=env)
    assert "set CARILLON_KAFKA_BOOTSTRAP" in named.output


def test_a_process_tells_the_keys_that_it_finds_in_its_files_by_now(tmp_path: Path) -> None:
    files = exported(tmp_path, "--create", "--persons-key", "persons.key")
    by_files = Settings(
        master_key_file=str(tmp_path / "none"),
        device_keys_file=str(files[KeyPurpose.DEVICES]),
        persons_key_file=str(tmp_path / "persons.key"),
    )
    gateway = load_keys(by_files, [KeyPurpose.DEVICES])
    all_keys = load_keys(Settings(master_key_file=str(tmp_path / "master.key")), list(KeyPurpose))
    persons = wrapping_keys(by_files)
    assert persons is not None
    (first,), (of_persons,) = gateway.held_fingerprints(KeyPurpose.DEVICES), persons.held_fingerprints()
    assert gateway.held_fingerprints(KeyPurpose.SECRETS) == []
    files[KeyPurpose.DEVICES].chmod(0o644)
    run(tmp_path, "prepare")
    following = MasterKey.load(tmp_path / "master.key.next")
    assert all_keys.held_fingerprints(KeyPurpose.DEVICES) == [first, following.fingerprint(KeyPurpose.DEVICES)]
    assert gateway.held_fingerprints(KeyPurpose.DEVICES) == [first]
    exported(tmp_path, "--persons-key", "persons.key")
    files[KeyPurpose.DEVICES].chmod(0o644)
    with capture_logs() as logged:
        for _ in range(2):
            assert gateway.held_fingerprints(KeyPurpose.DEVICES) == [first, following.fingerprint(KeyPurpose.DEVICES)]
    assert len(logged) == 1, "a file is read, and warned of, once a change"
    of_next = fingerprint_of(derive((tmp_path / "master.key.next").read_bytes(), OptionalPurpose.PERSONS))
    assert list(persons.held_fingerprints()) == [of_persons, of_next]
    files[KeyPurpose.DEVICES].unlink()
    with capture_logs() as logged:
        for _ in range(2):
            assert len(gateway.held_fingerprints(KeyPurpose.DEVICES)) == 2
    assert [line["event"] for line in logged] == ["the key files cannot be read again"]


_NEXT: dict[KeyPurpose | OptionalPurpose, bytes] = {
    KeyPurpose.DEVICES: b"devices",
    KeyPurpose.SECRETS: b"secrets",
    OptionalPurpose.PERSONS: b"persons",
}


@pytest.mark.parametrize(
    ("held", "heard_ms", "is_enough"),
    [
        (HeldKeys(device_keys=[b"former", b"devices"], persons=[b"former", b"persons"]), 100_000, True),
        (HeldKeys(), 100_000, True),
        (HeldKeys(device_keys=[b"former"]), 100_000, False),
        (HeldKeys(device_keys=[b"devices"], secrets=[b"devices"]), 100_000, False),
        (HeldKeys(device_keys=[b"devices"], persons=[b"former"]), 100_000, False),
        (None, 100_000, False),
        (None, 100_000 - SILENT_MS - 1, True),
    ],
    ids=["both", "needs none", "former alone", "another's", "no next one of persons", "older release", "silent"],
)
def test_which_processes_keep_a_rotation_waiting(held: HeldKeys | None, heard_ms: int, is_enough: bool) -> None:
    process = Process("p", ProcessStatus(held_keys=held), heard_ms, heard_ms, {})
    assert has_next_keys(process, _NEXT, 100_000) is is_enough
