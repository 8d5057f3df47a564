"""The master key, sealed secrets and device keys."""

import asyncio
import base64
import os
import stat
import sys
from pathlib import Path

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

import edge.serve
from carillon.roles import role_definition
from services.domain.master_key import KeyPurpose, MasterKey, load_keys
from services.domain.role_context import role_context
from services.domain.settings import Settings
from services.domain.topics import TOPICS
from services.errors import CarillonError
from services.replica.peers import Peers

KEYS = MasterKey(bytes(range(32)))
OTHERS = MasterKey(bytes(32))
APPKEYS = st.from_regex(r"[1-9][0-9]{9}", fullmatch=True)
TOKENS = st.text(min_size=1, max_size=80) | st.from_regex(r"[0-9a-f]{32}", fullmatch=True)
NUMBERS = st.integers(0, 2**32 - 1)


@given(secret=st.text(st.characters(exclude_categories=["Cs"])), context=APPKEYS)
def test_a_sealed_secret_opens_with_its_context(secret: str, context: str) -> None:
    assert KEYS.open(KEYS.seal(secret, context), context) == secret


def test_sealing_hides_the_secret_and_never_repeats() -> None:
    first, second = KEYS.seal("secret-canary", "1000000001"), KEYS.seal("secret-canary", "1000000001")
    assert first != second
    assert b"secret-canary" not in first


@pytest.mark.parametrize(
    ("keys", "context", "cut"),
    [
        (KEYS, "1000000002", slice(None)),
        (OTHERS, "1000000001", slice(None)),
        (KEYS, "1000000001", slice(None, -1)),
        (KEYS, "1000000001", slice(12)),
        (KEYS, "1000000001", slice(5)),
        (KEYS, "1000000001", slice(0)),
    ],
    ids=["other context", "other master key", "cut", "nonce alone", "half a nonce", "nothing"],
)
def test_a_damaged_or_foreign_seal_is_one_error_without_the_secret(keys: MasterKey, context: str, cut: slice) -> None:
    sealed = KEYS.seal("secret-canary", "1000000001")
    with pytest.raises(CarillonError) as raised:
        keys.open(sealed[cut], context)
    assert "canary" not in str(raised.value)


@given(appkey=APPKEYS, token=TOKENS, number=NUMBERS)
def test_a_device_key_proves_its_token_and_carries_the_number(appkey: str, token: str, number: int) -> None:
    key = KEYS.device_key(appkey, token, number)
    assert KEYS.device_number(appkey, token, key) == number
    assert OTHERS.device_number(appkey, token, key) is None
    assert key.isascii()
    assert "=" not in key


@given(owner=st.tuples(APPKEYS, TOKENS), other=st.tuples(APPKEYS, TOKENS), number=NUMBERS)
def test_a_device_key_is_refused_for_any_other_device(
    owner: tuple[str, str], other: tuple[str, str], number: int
) -> None:
    assume(owner != other)
    assert KEYS.device_number(*other, KEYS.device_key(*owner, number)) is None


@given(data=st.data(), number=NUMBERS)
def test_a_key_has_one_spelling(data: st.DataObject, number: int) -> None:
    """Base64 decoders skip unknown characters and ignore the last bits; a changed key must be refused all the same."""
    key = KEYS.device_key("1000000001", "t", number)
    place = data.draw(st.integers(0, len(key) - 1))
    letter = data.draw(st.characters(codec="latin-1"))
    for touched in (key[:place] + letter + key[place:], key[:place] + letter + key[place + 1 :], key[:place]):
        assert touched == key or KEYS.device_number("1000000001", "t", touched) is None
    assert KEYS.device_number("1000000001", "t", key + "=") is None


@given(appkey=st.text(), token=st.text(), key=st.text() | st.binary().map(lambda raw: base64.b64encode(raw).decode()))
@example(appkey="1", token="\ud800", key=KEYS.device_key("1", "t", 0))
@example(appkey="1", token="t", key="钥匙")
@example(appkey="1", token="t", key="\ud800")
@example(appkey="1", token="t", key="A")
@example(appkey="1", token="t", key="")
def test_garbage_is_refused_without_an_error(appkey: str, token: str, key: str) -> None:
    assert KEYS.device_number(appkey, token, key) is None


def test_the_first_start_makes_a_key_that_only_its_owner_reads(tmp_path: Path) -> None:
    file = tmp_path / "new" / "master.key"
    MasterKey.load(file)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert len(file.read_bytes()) == 32
    assert list(file.parent.iterdir()) == [file]


def test_a_later_start_finds_the_same_key(tmp_path: Path) -> None:
    sealed = MasterKey.load(tmp_path / "master.key").seal("s", "1")
    assert MasterKey.load(tmp_path / "master.key").open(sealed, "1") == "s"


@pytest.mark.parametrize("content", [b"", b"short", bytes(33)])
def test_a_file_of_another_size_is_named_in_the_error(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "master.key").write_bytes(content)
    with pytest.raises(CarillonError, match=str(tmp_path / "master.key")):
        MasterKey.load(tmp_path / "master.key")
    assert (tmp_path / "master.key").read_bytes() == content


STARTER = """
import os, sys
from pathlib import Path
os.getpid = lambda: 1  # as in containers that share a volume
from services.domain.master_key import MasterKey
print(flush=True)
sys.stdin.readline()
print(MasterKey.load(Path(sys.argv[1])).device_key("1000000001", "t", 7))
"""


async def test_processes_that_start_at_once_agree_on_one_key(tmp_path: Path) -> None:
    pipe = asyncio.subprocess.PIPE
    arguments = (sys.executable, "-c", STARTER, str(tmp_path / "master.key"))
    starting = [asyncio.create_subprocess_exec(*arguments, stdin=pipe, stdout=pipe) for _ in range(4)]
    processes = await asyncio.gather(*starting)
    async with asyncio.timeout(60):
        for process in processes:
            assert process.stdout is not None
            await process.stdout.readline()
        answers = await asyncio.gather(*(process.communicate(b"\n") for process in processes))
    keys = {out.decode().strip() for out, _ in answers}
    assert keys == {MasterKey.load(tmp_path / "master.key").device_key("1000000001", "t", 7)}
    assert os.listdir(tmp_path) == ["master.key"]


def test_keys_never_change_with_the_code() -> None:
    """Golden: a key that a device has stored must be valid after every upgrade."""
    assert KEYS.device_key("1000000001", "token-1", 5) == "AAAABWigpKsxKp_7MMiAWaEEh3A"
    assert (
        KEYS.open(bytes.fromhex("4c82807789f5f3aa5e663e71ba4a2ed2acab266ca2030a80e3e019fe3db49ec41b6a"), "1000000001")
        == "s3cret"
    )


def test_secrets_sealed_by_the_first_version_open() -> None:
    sealed = bytes.fromhex("8a4ede1bc558e954952b0e52982332480fc5501cacb45ae5d844e117eec80fca9af7cae2b09f1253c4")
    assert KEYS.open(sealed, "1000000001") == "secret-canary"


def test_the_key_of_devices_opens_and_seals_nothing_and_the_key_of_secrets_proves_no_device() -> None:
    devices, secrets = KEYS.only([KeyPurpose.DEVICES]), KEYS.only([KeyPurpose.SECRETS])
    key = KEYS.device_key("1000000001", "t", 7)
    sealed = KEYS.seal("secret-canary", "1000000001")
    assert devices.device_number("1000000001", "t", key) == 7
    assert devices.device_key("1000000001", "t", 7) == key
    assert secrets.open(sealed, "1000000001") == "secret-canary"
    with pytest.raises(CarillonError, match="not given the key of app secrets"):
        devices.open(sealed, "1000000001")
    with pytest.raises(CarillonError, match="not given the key of app secrets"):
        devices.seal("s", "1000000001")
    with pytest.raises(CarillonError, match="not given the key of device keys"):
        secrets.device_number("1000000001", "t", key)


async def test_a_role_without_its_key_does_not_start_and_says_how_to_get_it(tmp_path: Path) -> None:
    """A master key of its own would make device keys that no other role accepts, and secrets that none can open."""
    data = tmp_path / "data"
    expected = f"no master key is at {data / 'master.key'}, and this process needs the key of "
    with pytest.raises(CarillonError, match=f"{expected}device keys: set CARILLON_DEVICE_KEYS_FILE to what"):
        async with role_context(Settings(data_dir=str(data)), Peers({}, TOPICS), role_definition("gateway").keys):
            pass
    with pytest.raises(CarillonError, match="set CARILLON_DEVICE_KEYS_FILE and CARILLON_SECRETS_KEY_FILE"):
        edge.serve.run({"CARILLON_DATA_DIR": str(data)})
    assert not data.exists()


def test_a_process_that_needs_no_key_reads_and_makes_none(tmp_path: Path) -> None:
    load_keys(Settings(data_dir=str(tmp_path / "data")), [])
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize(
    ("role", "purposes"),
    [
        ("gateway", {KeyPurpose.DEVICES}),
        ("edge", {KeyPurpose.DEVICES, KeyPurpose.SECRETS}),
        ("registry", {KeyPurpose.SECRETS}),
        ("delivery", {KeyPurpose.SECRETS}),
        ("accounts", {KeyPurpose.SECRETS}),
        ("console", {KeyPurpose.SECRETS}),
        ("targeting", set()),
        ("scheduling", set()),
        ("analytics", set()),
    ],
)
def test_each_role_is_given_the_keys_that_it_needs(role: str, purposes: set[KeyPurpose]) -> None:
    assert role_definition(role).keys == purposes
