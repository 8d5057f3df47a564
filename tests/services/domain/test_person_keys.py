"""Keys of persons: a destroyed one can be derived by nobody, whatever happened, and every other one still can."""

import gc
import hashlib
import itertools
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography.exceptions import InvalidTag
from hypothesis import given
from hypothesis import strategies as st

from services.domain import person_keys
from services.domain.person_keys import (
    BLOCKS,
    SECRET,
    Block,
    KeyFiles,
    KeyRing,
    KeyStoreError,
    PuncturedError,
    remaining,
)
from testkit.persons import counted_keys
from testkit.repository import ROOT

LEAVES = 1 << 36
NONCE = bytes(12)
near = st.integers(0, 255) | st.integers(LEAVES - 256, LEAVES - 1) | st.integers(0, LEAVES - 1)


def path_secrets(root: bytes, leaf: int) -> set[bytes]:
    """Return the secrets from a root down to a leaf: whoever has one of them can derive the leaf's."""
    found = {root}
    for shift in range(34, -1, -2):
        root = hashlib.sha256(root + bytes([leaf >> shift & 3])).digest()[:SECRET]
        found.add(root)
    return found


def leaf_secret(root: bytes, leaf: int) -> bytes:
    for shift in range(34, -1, -2):
        root = hashlib.sha256(root + bytes([leaf >> shift & 3])).digest()[:SECRET]
    return root


def reachable_bytes(start: object) -> Iterator[bytes]:
    """Yield all bytes that an object holds, directly or not."""
    known: set[int] = set()
    waiting = [start]
    while waiting:
        one = waiting.pop()
        if id(one) in known or isinstance(one, type) or callable(one):
            continue
        known.add(id(one))
        if isinstance(one, bytes | bytearray):
            yield bytes(one)
        waiting += gc.get_referents(one)


def block_of(subject: bytes) -> int:
    return int.from_bytes(subject[:6], "big") >> 36


def root_of(files: KeyFiles, subject: bytes) -> bytes:
    return files.load(block_of(subject))[-SECRET:]


def in_block(ring: KeyRing, block: int, count: int) -> list[bytes]:
    """Return hashes like those of subjects, all in one block."""
    rest = (hashlib.blake2b(str(number).encode(), digest_size=15).digest() for number in range(count))
    return [(block << 4 | each[0] >> 4).to_bytes(2, "big") + each[1:] for each in rest]


@pytest.fixture
def files(tmp_path: Path) -> KeyFiles:
    return KeyFiles.create(tmp_path / "persons")


@given(st.lists(near, max_size=12, unique=True), st.lists(near, max_size=20), st.randoms())
def test_all_leaves_but_the_punctured_ones_are_derived_whatever_the_order(
    punctured: list[int], others: list[int], order: random.Random
) -> None:
    root = b"0123456789abcdef"
    block, another_order = Block([], root), Block([], root)
    gone: set[bytes] = set()
    for leaf in punctured:
        left = block.without(leaf)
        assert left is not None
        block = left
        gone |= path_secrets(root, leaf)
        assert block.without(leaf) is None
        others += [leaf ^ 1, leaf ^ 4]
    for leaf in order.sample(punctured, len(punctured)):
        another_order = another_order.without(leaf) or another_order
    assert block.stored() == another_order.stored()
    block = Block.of(block.stored())
    for leaf in others:
        assert block.secret(leaf) == (None if leaf in punctured else leaf_secret(root, leaf))
    assert [block.secret(leaf) for leaf in punctured] == [None] * len(punctured)
    stored = block.stored()[4 + 5 * len(punctured) :]
    assert not gone & {stored[at : at + SECRET] for at in range(0, len(stored), SECRET)}


@given(st.lists(near, max_size=8, unique=True))
def test_the_remaining_nodes_are_above_each_other_leaf_once(punctured: list[int]) -> None:
    nodes = list(remaining(sorted(punctured)))
    assert [node.first for node in nodes] == sorted(node.first for node in nodes)
    assert all(one.end <= other.first for one, other in itertools.pairwise(nodes))
    assert sum(node.end - node.first for node in nodes) == LEAVES - len(punctured)


def test_nothing_on_the_disk_or_in_memory_gives_a_punctured_key(files: KeyFiles, tmp_path: Path) -> None:
    ring = KeyRing(files)
    subjects = [ring.subject("token", "1", f"~{number}") for number in range(40)] + in_block(ring, 7, 20)
    sealed = {each: ring.cipher(each).encrypt(NONCE, b"alice", None) for each in subjects}
    assert len(set(sealed.values())) == len(subjects)
    secrets = {each: path_secrets(root_of(files, each), int.from_bytes(each[:6], "big") % LEAVES) for each in subjects}
    erased, kept = subjects[::2], subjects[1::2]
    gone: set[bytes] = set().union(*(secrets[each] for each in erased))
    assert any(gone & {part} for part in (root_of(files, each) for each in erased))
    for each in erased:
        assert ring.puncture(each)
        assert not ring.puncture(each)
    gc.collect()
    held = [*(file.read_bytes() for file in (tmp_path / "persons").iterdir()), *reachable_bytes(ring)]
    assert sum(map(len, held)) > BLOCKS * SECRET
    assert [secret.hex() for secret in gone if any(secret in content for content in held)] == []
    for opening in (ring, KeyRing(KeyFiles(tmp_path / "persons"))):
        for each in kept:
            assert opening.cipher(each).decrypt(NONCE, sealed[each], None) == b"alice"
            assert not opening.is_punctured(each)
        for each in erased:
            assert opening.is_punctured(each)
            with pytest.raises(PuncturedError):
                opening.cipher(each)


def test_a_group_ends_with_its_first_subject(files: KeyFiles) -> None:
    ring = KeyRing(files)
    group = [ring.subject("number", "1", str(number)) for number in range(3)]
    sealed = ring.cipher_of_all(group).encrypt(NONCE, b"hello", None)
    assert ring.cipher_of_all(group).decrypt(NONCE, sealed, None) == b"hello"
    with pytest.raises(InvalidTag):
        ring.cipher_of_all(group[:2]).decrypt(NONCE, sealed, None)
    ring.puncture(group[1])
    with pytest.raises(PuncturedError):
        ring.cipher_of_all(group)


def test_two_subjects_of_one_leaf_have_different_keys_and_end_together(files: KeyFiles) -> None:
    ring = KeyRing(files)
    one, other = b"0123456789012345", b"0123459999999999"
    sealed = ring.cipher(one).encrypt(NONCE, b"alice", None)
    with pytest.raises(InvalidTag):
        ring.cipher(other).decrypt(NONCE, sealed, None)
    assert ring.cipher(one).decrypt(NONCE, sealed, None) == b"alice"
    ring.puncture(other)
    assert ring.is_punctured(one)


def test_names_and_subjects_are_those_of_the_installation(files: KeyFiles, tmp_path: Path) -> None:
    ring, same = KeyRing(files), KeyRing(KeyFiles(tmp_path / "persons"))
    foreign = KeyRing(KeyFiles.create(tmp_path / "others"))
    name = ring.name("token", "1", "abc")
    assert len(name) == 27
    assert name.startswith("~")
    assert name == same.name("token", "1", "abc")
    others = [ring.name("alias", "1", "abc"), ring.name("token", "1a", "bc"), foreign.name("token", "1", "abc")]
    assert len({name, *others}) == 4
    assert ring.subject("a", "bc") != ring.subject("ab", "c")
    assert ring.subject("a") == same.subject("a") != foreign.subject("a")


def test_names_subjects_and_keys_of_stored_records_never_change(tmp_path: Path) -> None:
    ring = counted_keys(tmp_path / "counted")
    for _ in range(2):
        assert ring.name("token", "1", "\u00e9\u00e9\u00e9") == "~mpv4pqxpey4eextowchmlhwhhu"
        assert ring.name("alias", "12345", "\ud800alice") == "~2mfmdyfkt4jjhzmuds2nklbhky"
        device = ring.subject("number", "1", "2", "3")
        assert device.hex() == "b4ff8d5d4cb9d6fb9e17301edb818a3c"
        assert ring.subject("fingerprint").hex() == "65f9f492d6eba4d87f01a005b464ea52"
        assert ring.subject("token", "1", "~a", "0").hex() == "be4fb6328042aa6fa48ccf20711f331b"
        month = ring.subject("month", "", "2026-11")
        assert month.hex() == "a900c5166dae099be11f223833393eb9"
        assert ring.cipher(device).encrypt(NONCE, b"", b"").hex() == "13cab19d5835d6a40b5b2e8eaeba9f03"
        both = ring.cipher_of_all([device, month])
        assert both.encrypt(NONCE, b"", b"").hex() == "32a45b8f4d6a96a08de572aabfa9547f"
        ring.puncture(ring.subject("x"))  # all others stay the same


def test_hashes_of_more_apps_than_are_held_are_the_same(files: KeyFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(person_keys, "_BEGUN", 2)
    ring, other = KeyRing(files), KeyRing(files)
    names = [ring.name("token", str(app), "a") for app in range(5)]
    assert [other.name("token", str(app), "a") for app in reversed(range(5))][::-1] == names
    assert len(set(names)) == 5


CHILD = """
import os, signal, sys
from pathlib import Path
from services.domain.person_keys import KeyFiles, KeyRing
from services.process import crashpoint
ring = KeyRing(KeyFiles(Path(sys.argv[1])))
if sys.argv[2]:
    crashpoint.arm(sys.argv[2], int(sys.argv[3]), lambda: os.kill(os.getpid(), signal.SIGKILL))
ring.puncture(bytes.fromhex(sys.argv[4]))
"""
POINTS = [
    *(("keys-punctured", 1), ("keys-written", 1), ("keys-replaced", 1), ("keys-written", 2), ("keys-forgotten", 1)),
]


@pytest.mark.parametrize(("point", "times"), POINTS)
def test_a_kill_leaves_all_keys_or_all_but_one(files: KeyFiles, tmp_path: Path, point: str, times: int) -> None:
    directory = tmp_path / "persons"
    ring = KeyRing(files)
    first, second = in_block(ring, 9, 2)
    sealed = ring.cipher(second).encrypt(NONCE, b"bob", None)
    gone = path_secrets(root_of(files, first), int.from_bytes(first[:6], "big") % LEAVES)
    child = subprocess.run(
        [sys.executable, "-c", CHILD, str(directory), point, str(times), first.hex()], cwd=ROOT, check=False
    )
    assert child.returncode == -signal.SIGKILL
    started = KeyRing(KeyFiles(directory))
    is_done = (point, times) not in POINTS[:2]
    assert started.is_punctured(first) == is_done
    assert started.cipher(second).decrypt(NONCE, sealed, None) == b"bob"
    started.puncture(first)
    held = b"".join(file.read_bytes() for file in directory.iterdir())
    assert not [secret for secret in gone if secret in held]
    assert sorted(file.name for file in directory.iterdir()) == ["009.block", "roots"]


def test_a_reader_beside_changes_nothing(files: KeyFiles, tmp_path: Path) -> None:
    directory = tmp_path / "persons"
    first, second = in_block(KeyRing(files), 9, 2)
    before = (directory / "roots").read_bytes()
    KeyRing(files).puncture(first)
    (directory / "roots").write_bytes(before)
    (directory / ".roots.left").write_bytes(b"")
    beside = KeyRing(KeyFiles(directory, read_only=True))
    assert (beside.is_punctured(first), beside.is_punctured(second)) == (True, False)
    with pytest.raises(KeyStoreError):
        beside.puncture(second)
    assert (directory / "roots").read_bytes() == before
    assert (directory / ".roots.left").exists()


def test_a_failed_write_is_repeated(files: KeyFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ring = KeyRing(files)
    (subject,) = in_block(ring, 9, 1)
    gone = path_secrets(root_of(files, subject), int.from_bytes(subject[:6], "big") % LEAVES)
    replace = os.replace

    def full(fresh: str, file: Path) -> None:
        if file.name == "roots":
            raise OSError("no space is left")
        replace(fresh, file)

    with monkeypatch.context() as patch:
        patch.setattr("services.domain.person_keys.os.replace", full)
        with pytest.raises(OSError, match="no space"):
            ring.puncture(subject)
    ring.puncture(subject)
    held = b"".join(file.read_bytes() for file in (tmp_path / "persons").iterdir())
    assert not [secret for secret in gone if secret in held]


@pytest.mark.parametrize("name", ["roots", "009.block"])
@pytest.mark.parametrize("damage", ["cut", "flipped", "gone", "foreign"])
def test_damaged_files_are_refused(files: KeyFiles, tmp_path: Path, name: str, damage: str) -> None:
    ring = KeyRing(files)
    (subject,) = in_block(ring, 9, 1)
    ring.puncture(subject)
    file = tmp_path / "persons" / name
    content = file.read_bytes()
    match damage:
        case "cut":
            file.write_bytes(content[:-1])
        case "flipped":
            file.write_bytes(content[:50] + bytes([content[50] ^ 1]) + content[51:])
        case "gone":
            file.unlink()
        case "foreign":
            file.write_bytes(b"something else")
    with pytest.raises(KeyStoreError):
        KeyRing(KeyFiles(tmp_path / "persons")).is_punctured(subject)


def test_the_files_are_readable_for_their_owner_alone(files: KeyFiles, tmp_path: Path) -> None:
    KeyRing(files).puncture(bytes(16))
    directory = tmp_path / "persons"
    assert [oct(path.stat().st_mode & 0o777) for path in (directory, *directory.iterdir())] == [
        "0o700",
        "0o600",
        "0o600",
    ]


def test_the_ciphers_of_the_latest_subjects_are_held(files: KeyFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.domain.person_keys._CIPHERS", 2)
    ring = KeyRing(files)
    one, two, three = (ring.subject(str(number)) for number in range(3))
    held = ring.cipher(one)
    assert ring.cipher(one) is held
    ring.cipher(two)
    assert ring.cipher(one) is held
    ring.cipher(three)
    assert ring.cipher(one) is held
    ring.cipher(two)
    assert len(ring._ciphers) == 2


def test_a_forgotten_key_is_derived_no_more_and_is_destroyed_later(files: KeyFiles, tmp_path: Path) -> None:
    """A process forgets what another one destroys; the store may have the key still, before it is loaded or after."""
    ring = KeyRing(files)
    gone, other = ring.subject("device", "1"), ring.subject("device", "2")
    key = ring.cipher(other).encrypt(NONCE, b"x", None)
    ring.forget(gone)
    for _ in range(2):
        with pytest.raises(PuncturedError):
            ring.cipher(gone)
    assert ring.cipher(other).decrypt(NONCE, key, None) == b"x"
    assert not KeyRing(KeyFiles(tmp_path / "persons", read_only=True)).is_punctured(gone)
    assert not ring.puncture(gone)
    assert KeyRing(KeyFiles(tmp_path / "persons", read_only=True)).is_punctured(gone)
    unloaded = KeyRing(KeyFiles(tmp_path / "persons", read_only=True))
    unloaded.forget(other)
    with pytest.raises(PuncturedError):
        unloaded.cipher(other)
