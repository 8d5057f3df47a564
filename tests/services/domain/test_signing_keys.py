"""The signing keys of processes: derived from the master key, or from the files of `carillon keys export`."""

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from carillon.commands.keys import keys
from protos.registry.v1.apps_pb2 import App, AppFact
from services.domain.apps import APPS_PARTITION
from services.domain.role_context import role_context
from services.domain.settings import Settings
from services.domain.signed_log import holds_signed
from services.domain.signing_keys import MOST_PUBLIC_KEYS, SIGNERS, load_signing_keys, read_public_keys
from services.domain.topics import TOPICS
from services.errors import CarillonError
from services.log.port import NewRecord
from services.log.sqlite.log import SqliteLog
from services.replica.peers import Peers

FORGED = NewRecord(*APPS_PARTITION, b"2", AppFact(app=App(appkey="2")).SerializeToString())


def app(appkey: str) -> NewRecord:
    return NewRecord(*APPS_PARTITION, appkey.encode(), AppFact(app=App(appkey=appkey)).SerializeToString())


def export(directory: Path, *options: str) -> Result:
    env = {"CARILLON_MASTER_KEY_FILE": str(directory / "master.key")}
    arguments = [option if option.startswith("--") else str(directory / option) for option in options]
    return CliRunner().invoke(keys, ["export", "--create", *arguments], env=env)


async def test_the_first_process_signs_and_its_children_and_later_starts_check(tmp_path: Path) -> None:
    settings = Settings(data_dir=str(tmp_path))
    async with role_context(settings, Peers({}, TOPICS), creates_master=True) as context:
        await context.log.append([app("1")])
        assert await context.apps.refresh()
    log = SqliteLog(settings.log_file, TOPICS)
    assert await holds_signed(log, "registry")
    await log.append([FORGED])
    await log.close()
    async with role_context(settings, Peers({}, TOPICS), creates_master=True) as context:
        assert [each.appkey for each in context.apps.all()] == ["1"]
    child = load_signing_keys(settings, "analytics", reads_master=False)
    assert (dict(child.private), set(child.public)) == ({}, set(SIGNERS))


def test_exported_keys_are_those_of_the_role_alone_and_fit_the_public_ones(tmp_path: Path) -> None:
    options = ("--registry-signing-key", "r.key", "--accounts-signing-key", "a.key", "--public-keys", "public.keys")
    for _ in range(2):
        result = export(tmp_path, *options)
        assert result.exit_code == 0, result.output
    public = {"public_keys_file": str(tmp_path / "public.keys")}
    for role, file in (("registry", "r.key"), ("accounts", "a.key")):
        settings = Settings(data_dir=str(tmp_path), signing_key_file=str(tmp_path / file), **public)  # type: ignore[arg-type]
        found = load_signing_keys(settings, role, reads_master=True)
        assert list(found.private) == [role]
        assert found.private[role].public_key() in found.public[role]
        assert not load_signing_keys(settings, "gateway", reads_master=True).private
    swapped = Settings(data_dir=str(tmp_path), signing_key_file=str(tmp_path / "a.key"), **public)  # type: ignore[arg-type]
    with pytest.raises(CarillonError, match="holds no signing key of the role registry"):
        load_signing_keys(swapped, "registry", reads_master=True)
    assert export(tmp_path, "--public-keys", "x", "--device-keys", "x").exit_code == 2


def test_a_new_key_stands_before_the_former_ones_of_which_the_oldest_goes_at_last(tmp_path: Path) -> None:
    """Records of `accounts` stay for ever, so the keys that have signed them must outlive several rotations."""
    newest_first: list[object] = []
    for number in range(MOST_PUBLIC_KEYS + 2):
        (tmp_path / "master.key").write_bytes(bytes([number] * 32))
        assert export(tmp_path, "--public-keys", "public.keys").exit_code == 0
        seen = read_public_keys(tmp_path / "public.keys")["registry"]
        newest_first.insert(0, seen[0])
        assert list(seen) == newest_first[:MOST_PUBLIC_KEYS]


@pytest.mark.parametrize("content", ["", "registry AAAA\naccounts AAAA\n", "registry x\n", "\xff"])
def test_a_damaged_file_of_public_keys_says_what_to_do(tmp_path: Path, content: str) -> None:
    file = tmp_path / "public.keys"
    file.write_text(content, encoding="latin-1")
    with pytest.raises(CarillonError, match="carillon keys export --public-keys"):
        load_signing_keys(Settings(public_keys_file=str(file)), "edge", reads_master=False)


async def test_an_owner_that_has_signed_does_not_start_without_its_key(tmp_path: Path) -> None:
    settings = Settings(data_dir=str(tmp_path))
    async with role_context(settings, Peers({}, TOPICS), creates_master=True) as context:
        await context.log.append([app("1")])
    without = Settings(data_dir=str(tmp_path), master_key_file=str(tmp_path / "none"))
    with pytest.raises(CarillonError, match="--registry-signing-key"):
        async with role_context(without, Peers({}, TOPICS), (), role="registry"):
            pass
    async with role_context(without, Peers({}, TOPICS), (), role="accounts"):
        pass  # it has signed nothing yet
