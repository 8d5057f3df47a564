"""The keys by which personal values are sealed: derived from a tree of secrets, so that one can be destroyed for ever.

No key is stored, and none is written when a device registers. A *subject*, such as a device or an alias, has a hash,
whose first 48 bits are its *leaf* in a tree. 4,096 *blocks* (12 bits) have a random *root* each; below it, a node has
four children (36 bits in 18 levels), which are hashes of the node's secret. The key of a subject is derived from the
secret of its leaf and its whole hash.

*Puncturing* a leaf replaces the node above it by the siblings of the way down: every other leaf of the block can still
be derived, this one cannot be any more, by nobody. The nodes of a block follow from its punctured leaves, so a block is
stored as these leaves and the secrets. This is the puncturable pseudorandom function of Goldreich, Goldwasser and
Micali's tree. A key store of an earlier day opens all records since, and those of subjects that were punctured since.

Two subjects may share a leaf: with 10 million devices and 10,000 punctured leaves this hits one device by 4 in 10,000.
"""

import base64
import hashlib
import os
import shutil
import threading
from array import array
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand

from services.errors import CarillonError
from services.process.crashpoint import Point, reached
from services.process.durable import make_durable, written_beside

BLOCKS = 4096
SECRET = 16
"""Bytes of the secret of a node."""

SUBJECT = 16
"""Bytes of the hash of a subject."""

NAMES = 32
"""Bytes of the secret of names."""

_UNTOUCHED = bytes(4)
_BLOCK_BITS = 12
_LEVELS = 18
_LEAF_BITS = 2 * _LEVELS
_LEAF_BYTES = 5
_CHECK = 32
_CIPHERS = 50_000
_BEGUN = 1000
_NAME_LETTERS = 26


class KeyStoreError(CarillonError, ValueError):
    """The stored keys cannot be used: they are damaged, or of a later version."""


class PersonKeySet(NamedTuple):
    """All keys of an installation: the secret of names, and each block as a KeyStore holds it."""

    names: bytes
    blocks: Sequence[bytes]

    @classmethod
    def new(cls) -> "PersonKeySet":
        """Return random keys, of which none is punctured."""
        return cls(os.urandom(NAMES), [_UNTOUCHED + os.urandom(SECRET) for _ in range(BLOCKS)])

    @classmethod
    def held(cls, store: "KeyStore") -> "PersonKeySet":
        """Return the keys that a store holds. KeyStoreError: a block is damaged."""
        return cls(store.names(), [store.load(number) for number in range(BLOCKS)])

    def write_copy(self, file: Path) -> None:
        """Write a copy of the keys to a file of mode 600."""
        lengths = [len(block).to_bytes(4, "big") + block for block in self.blocks]
        _write(file, self.names + b"".join(lengths))

    @classmethod
    def read_copy(cls, file: Path) -> "PersonKeySet":
        """Return the keys in a copy. KeyStoreError: the file is none."""
        content, at, blocks = _checked(file), NAMES, []
        while at < len(content):
            length = int.from_bytes(content[at : at + 4], "big")
            if length > len(content):
                break
            blocks.append(content[at + 4 : at + 4 + length])
            Block.of(blocks[-1])
            at += 4 + length
        if len(blocks) != BLOCKS or at != len(content):
            raise KeyStoreError(f"{file} is no copy of keys of persons")
        return cls(content[:NAMES], blocks)


class PuncturedError(CarillonError, LookupError):
    """The key of the subject is destroyed."""


class KeyStore(Protocol):
    """Where the blocks are held. Its contents are in no log, archive or backup of the log."""

    def names(self) -> bytes:
        """Return the secret of names and hashes, which never changes."""
        ...

    def load(self, block: int) -> bytes:
        """Return a block as it was replaced last. KeyStoreError: it is damaged."""
        ...

    def replace(self, block: int, content: bytes) -> None:
        """Store a block durably in place of the former one, of which nothing is kept."""
        ...


# The nodes of a block.


class Node(NamedTuple):
    """A node: the first of the leaves below it, within the block, and its level (0: the root, 18: a leaf)."""

    first: int
    level: int

    @property
    def end(self) -> int:
        return self.first + (1 << 2 * (_LEVELS - self.level))


_ROOT = Node(0, 0)


def remaining(punctured: Sequence[int], node: Node = _ROOT) -> Iterator[Node]:
    """Yield the nodes above all leaves but the punctured ones, in order; no leaf is below two of them.

    `punctured`: the punctured leaves below the node, ascending.
    """
    if not punctured:
        yield node
        return
    if node.level == _LEVELS:
        return
    for child in _children(node):
        begin, end = bisect_left(punctured, child.first), bisect_left(punctured, child.end)
        yield from remaining(punctured[begin:end], child)


def _children(node: Node) -> list[Node]:
    level = node.level + 1
    size = 1 << 2 * (_LEVELS - level)
    return [Node(node.first + digit * size, level) for digit in range(4)]


def _child_secret(secret: bytes, digit: int) -> bytes:
    return hashlib.sha256(secret + _DIGITS[digit]).digest()[:SECRET]


_DIGITS = [bytes([digit]) for digit in range(4)]
_SHIFTS = range(2 * (_LEVELS - 1), -1, -2)


class Block:
    """The nodes that are left of a block, with their secrets. It never changes: `without` returns another one.

    It takes 25 bytes a node: 100,000 erased persons of four leaves each leave 21 million nodes.
    """

    def __init__(self, punctured: Sequence[int], secrets: bytes) -> None:
        """`secrets`: those of the remaining nodes, in order."""
        nodes = list(remaining(punctured))
        if len(secrets) != len(nodes) * SECRET:
            raise KeyStoreError("a block of keys does not have the nodes that its punctured leaves leave")
        self.punctured = punctured
        self._firsts = array("Q", (node.first for node in nodes))
        self._levels = bytes(node.level for node in nodes)
        self._secrets = secrets

    def secret(self, leaf: int) -> bytes | None:
        """Return the secret of a leaf; None: it is punctured."""
        level, secret = 0, self._secrets
        if self.punctured:
            found = self._above(leaf)
            if found is None:
                return None
            (_, level), secret = self._node(found)
        for shift in _SHIFTS[level:]:
            secret = hashlib.sha256(secret + _DIGITS[leaf >> shift & 3]).digest()[:SECRET]
        return secret

    def without(self, leaf: int) -> "Block | None":
        """Return the block from which the leaf cannot be derived; None: it cannot be derived from this one."""
        found = self._above(leaf)
        if found is None:
            return None
        left: list[tuple[Node, bytes]] = []
        node, secret = self._node(found)
        while node.level < _LEVELS:
            children = _children(node)
            below = leaf >> _SHIFTS[node.level] & 3
            left += [(child, _child_secret(secret, digit)) for digit, child in enumerate(children) if digit != below]
            node, secret = children[below], _child_secret(secret, below)
        left.sort()
        between = b"".join(one for _, one in left)
        secrets = self._secrets[: found * SECRET] + between + self._secrets[(found + 1) * SECRET :]
        return Block(sorted([*self.punctured, leaf]), secrets)

    def _node(self, index: int) -> tuple[Node, bytes]:
        """Return a node and its secret."""
        return Node(self._firsts[index], self._levels[index]), self._secrets[index * SECRET : (index + 1) * SECRET]

    def _above(self, leaf: int) -> int | None:
        """Return the index of the node above the leaf."""
        index = bisect_right(self._firsts, leaf) - 1
        return index if index >= 0 and leaf < Node(self._firsts[index], self._levels[index]).end else None

    def stored(self) -> bytes:
        """Return the block in the form in which it is stored."""
        leaves = b"".join(leaf.to_bytes(_LEAF_BYTES, "big") for leaf in self.punctured)
        return len(self.punctured).to_bytes(4, "big") + leaves + self._secrets

    @classmethod
    def of(cls, stored: bytes) -> "Block":
        """Return a stored block. KeyStoreError: it is none."""
        end = 4 + _LEAF_BYTES * int.from_bytes(stored[:4], "big")
        whole = range(4, min(end, len(stored)), _LEAF_BYTES)
        leaves = [int.from_bytes(stored[at : at + _LEAF_BYTES], "big") for at in whole]
        if len(stored) < end or leaves != sorted(set(leaves)) or any(leaf >> _LEAF_BITS for leaf in leaves):
            raise KeyStoreError("a block of keys is damaged")
        return cls(leaves, stored[end:])


# Names and keys.


class KeyRing:
    """The keys of a process, derived from the blocks of a store. Its methods may be called from any thread."""

    def __init__(self, store: KeyStore) -> None:
        self._store = store
        self._names = store.names()
        self._blocks: dict[int, Block] = {}
        self._begun: dict[tuple[bytes, tuple[str, ...]], hashlib.blake2b] = {}
        self._ciphers: OrderedDict[int, tuple[bytes, AESGCM]] = OrderedDict()
        self._forgotten: dict[int, set[int]] = {}
        self._unstored: set[int] = set()
        self._lock = threading.Lock()
        self._puncturing = threading.Lock()

    def name(self, kind: str, appkey: str, value: str) -> str:
        """Return `~` and 26 letters, which stand for a token or an alias; they tell nothing of it.

        The name of an erased value stays the same, so that a question for the value finds what is left of it.
        """
        digest = self._hash(b"name", (kind, appkey), (value,))
        return f"~{base64.b32encode(digest)[:_NAME_LETTERS].decode().lower()}"

    def subject(self, *parts: str) -> bytes:
        """Return the hash of a subject, which is named by all of these parts."""
        return self._hash(b"subject", parts[:2], parts[2:])

    def _hash(self, purpose: bytes, first: tuple[str, ...], rest: tuple[str, ...]) -> bytes:
        """Return the hash of all parts. Those of one kind and app begin with the same `first`, which is hashed once."""
        begun = self._begun.get((purpose, first))
        if begun is None:
            begun = hashlib.blake2b(_joined(first), key=self._names, digest_size=SUBJECT, person=purpose)
            if len(self._begun) >= _BEGUN:
                self._begun.clear()
            self._begun[purpose, first] = begun
        whole = begun.copy()
        whole.update(_joined(rest))
        return whole.digest()

    def cipher(self, subject: bytes) -> AESGCM:
        """Return the cipher of a subject. PuncturedError: its key is destroyed."""
        leaf = _leaf(subject)
        with self._lock:
            held = self._ciphers.get(leaf)
            if held is not None and held[0] == subject:
                self._ciphers.move_to_end(leaf)
                return held[1]
            made = AESGCM(self._derived(leaf, subject))
            self._ciphers[leaf] = (subject, made)
            if len(self._ciphers) > _CIPHERS:
                self._ciphers.popitem(last=False)
            return made

    def cipher_of_all(self, subjects: Sequence[bytes]) -> AESGCM:
        """Return a cipher that is lost with the first of these subjects. PuncturedError: one's key is destroyed."""
        with self._lock:
            keys = b"".join(self._derived(_leaf(subject), subject) for subject in subjects)
        return AESGCM(hashlib.sha256(b"carillon group" + keys).digest())

    def is_punctured(self, subject: bytes) -> bool:
        leaf = _leaf(subject)
        with self._lock:
            return self._block(leaf).secret(leaf & _MASK) is None

    def forget(self, subject: bytes) -> None:
        """Derive the key of a subject no more, though the store may still have it until `puncture` is called."""
        leaf = _leaf(subject)
        number = leaf >> _LEAF_BITS
        with self._lock:
            self._forgotten.setdefault(number, set()).add(leaf & _MASK)
            if (block := self._blocks.get(number)) is not None:
                self._blocks[number] = self._without_forgotten(number, block)
            self._ciphers.pop(leaf, None)

    def puncture(self, subject: bytes) -> bool:
        """Destroy the key of a subject, durably; return False if it was destroyed or forgotten before.

        Errors of the store: nothing has changed, or the store has forgotten the key and this process still has it; call
        again.
        """
        leaf = _leaf(subject)
        with self._puncturing:
            with self._lock:
                number, present = leaf >> _LEAF_BITS, self._block(leaf)
                left = present.without(leaf & _MASK)
                is_needed = left is not None or number in self._unstored
            if is_needed:  # without the lock: a store may wait for the event loop, which may wait for a cipher
                self._store.replace(number, (left or present).stored())
            with self._lock:
                if is_needed:
                    self._unstored.discard(number)
                    self._blocks[number] = self._without_forgotten(number, left or present)
                self._ciphers.pop(leaf, None)
            return left is not None

    def reload(self, block: int) -> None:
        """Forget a block and the keys from it, after another process has destroyed a key: it is loaded when needed."""
        with self._lock:
            self._blocks.pop(block, None)
            for leaf in [leaf for leaf in self._ciphers if leaf >> _LEAF_BITS == block]:
                del self._ciphers[leaf]

    @property
    def fingerprint(self) -> bytes:
        """16 bytes by which these keys are recognised, and which reveal nothing of them."""
        return self.subject("fingerprint")

    def _derived(self, leaf: int, subject: bytes) -> bytes:
        secret = self._block(leaf).secret(leaf & _MASK)
        if secret is None:
            raise PuncturedError("the key of this value is destroyed")
        return HKDFExpand(SHA256(), 32, b"carillon person" + subject).derive(secret)

    def _block(self, leaf: int) -> Block:
        number = leaf >> _LEAF_BITS
        block = self._blocks.get(number)
        if block is None:
            block = self._blocks[number] = self._without_forgotten(number, Block.of(self._store.load(number)))
        return block

    def _without_forgotten(self, number: int, block: Block) -> Block:
        """Return the block without the forgotten leaves, which the store may still have."""
        for leaf in self._forgotten.get(number, ()):
            if (left := block.without(leaf)) is not None:
                block = left
                self._unstored.add(number)
        return block


_MASK = (1 << _LEAF_BITS) - 1


def _leaf(subject: bytes) -> int:
    """Return the leaf of a subject, with the number of its block in the upper bits."""
    return int.from_bytes(subject[: (_BLOCK_BITS + _LEAF_BITS) // 8], "big")


def _joined(parts: Sequence[str]) -> bytes:
    """Return bytes that no other parts give."""
    joined = b""
    for part in parts:
        encoded = part.encode("utf-8", "surrogatepass")
        joined += len(encoded).to_bytes(4, "big") + encoded
    return joined


# The store of one machine.


class KeyFiles:
    """The key store of one machine: the roots in one file, and each block of which a leaf is punctured in its own.

    So a puncture writes one block, and the first one of a block the 64 KB of the roots too. The block's file comes
    first, and counts from then on: after a kill in between, the next start takes the root out of the file of roots.
    """

    def __init__(self, directory: Path, *, read_only: bool = False) -> None:
        """`read_only`: of processes beside the one that punctures. KeyStoreError: the keys are missing or damaged."""
        self._directory = directory
        content = _checked(directory / _ROOTS_FILE)
        if len(content) != NAMES + BLOCKS * SECRET:
            raise KeyStoreError(f"{directory / _ROOTS_FILE} has another length than a file of keys")
        self._secret, self._roots = content[:NAMES], bytearray(content[NAMES:])
        self._read_only = read_only
        self._holds_forgotten = False
        if not read_only:
            for left in directory.glob(".*"):
                left.unlink()
        self._forget_roots(int(file.stem, 16) for file in directory.glob("*.block"))

    @classmethod
    def create(cls, directory: Path) -> "KeyFiles":
        """Make the directory with random keys in it."""
        return cls.fill(directory, PersonKeySet.new())

    @classmethod
    def fill(cls, directory: Path, keys: "PersonKeySet") -> "KeyFiles":
        """Make the directory with these keys in it: after a kill it is there with all of them, or it is not there."""
        work = directory.with_name(f".{directory.name}.unfinished")
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir(mode=0o700, parents=True)
        roots = bytearray(BLOCKS * SECRET)
        for number, content in enumerate(keys.blocks):
            if len(content) == len(_UNTOUCHED) + SECRET and content.startswith(_UNTOUCHED):
                roots[number * SECRET : (number + 1) * SECRET] = content[len(_UNTOUCHED) :]
            else:
                _write(work / f"{number:03x}.block", content)
        _write(work / _ROOTS_FILE, keys.names + roots)
        make_durable(work)
        work.rename(directory)
        make_durable(directory.parent)
        return cls(directory)

    def names(self) -> bytes:
        return self._secret

    def load(self, block: int) -> bytes:
        root = self._roots[block * SECRET : (block + 1) * SECRET]
        if any(root) and not (self._read_only and self._file(block).exists()):
            return _UNTOUCHED + root
        return _checked(self._file(block))

    def replace(self, block: int, content: bytes) -> None:
        if self._read_only:
            raise KeyStoreError("another process holds the keys of persons")
        reached(Point.KEYS_PUNCTURED)
        _write(self._file(block), content)
        reached(Point.KEYS_REPLACED)
        self._forget_roots([block])
        reached(Point.KEYS_FORGOTTEN)

    def _file(self, block: int) -> Path:
        return self._directory / f"{block:03x}.block"

    def _forget_roots(self, blocks: Iterable[int]) -> None:
        """Take the roots of these blocks out of memory and out of the file of roots."""
        for block in blocks:
            place = slice(block * SECRET, (block + 1) * SECRET)
            self._holds_forgotten |= any(self._roots[place])
            self._roots[place] = bytes(SECRET)
        if self._holds_forgotten and not self._read_only:
            _write(self._directory / _ROOTS_FILE, self._secret + self._roots)
            self._holds_forgotten = False


_ROOTS_FILE = "roots"
_MAGIC = b"carillon persons 1\n"


def _write(file: Path, content: bytes) -> None:
    """Replace a file durably by content that `_checked` returns."""
    whole = _MAGIC + content
    with written_beside(file, whole + hashlib.sha256(whole).digest()) as fresh:
        reached(Point.KEYS_WRITTEN)
        os.replace(fresh, file)


def _checked(file: Path) -> bytes:
    """Return the content of a file that `_write` wrote. KeyStoreError: it is missing, or not as it was written."""
    try:
        whole = file.read_bytes()
    except FileNotFoundError:
        raise KeyStoreError(f"{file} is missing") from None
    if not whole.startswith(_MAGIC):
        raise KeyStoreError(f"{file} is no file of keys, or one of a later version")
    if hashlib.sha256(whole[:-_CHECK]).digest() != whole[-_CHECK:]:
        raise KeyStoreError(f"{file} is damaged")
    return whole[len(_MAGIC) : -_CHECK]
