"""The installation's master key, and the keys derived from it for sealed secrets and device keys.

The master key is 32 random bytes in a file of mode 600, created by the first `carillon up` or by `carillon keys export
--create`. The other keys are derived from it by HKDF-SHA256, and may be given to processes in files of their own, which
do not reveal the master key.

While the keys rotate, a process has two keys of each purpose: the next master key is in a file beside the present one,
and a file of derived keys has two lines. The log says which key is in force: see KeyChain.
"""

import base64
import contextlib
import hashlib
import hmac
import os
import stat
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import NamedTuple

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from protos.registry.v1.apps_pb2 import KeyFingerprint
from services.domain.settings import Settings
from services.errors import CarillonError, UnavailableError
from services.process.durable import make_durable, written_beside
from services.process.logs import logger

DEVICE_KEY_LENGTH = 27
"""Characters of a device key."""

_KEY = 32
_NONCE = 12
_MAC = 16


class KeyPurpose(Enum):
    """The purpose of a derived key.

    Neither the other purpose's key nor the master key can be computed from a derived key.
    """

    DEVICES = "device keys"
    SECRETS = "app secrets"


class OptionalPurpose(Enum):
    """The purpose of a derived key without which a process starts, too: see services/domain/person_key_topic.py."""

    PERSONS = "keys of persons"


_FILE_SETTINGS = {
    KeyPurpose.DEVICES: "CARILLON_DEVICE_KEYS_FILE",
    KeyPurpose.SECRETS: "CARILLON_SECRETS_KEY_FILE",
}


def sealed_digest(sealed: bytes) -> bytes:
    """Return the digest that names a sealed secret where the sealed secret itself is not shown."""
    return hashlib.sha256(sealed).digest()


class _HeldKey:
    """A derived key of a process, and its fingerprint."""

    def __init__(self, key: bytes) -> None:
        self.key = key
        self.fingerprint = hmac.digest(key, b"carillon fingerprint", "sha256")[:_MAC]
        self._empty_mac = hmac.new(key, digestmod=hashlib.sha256)  # copying it takes half the time of keying another

    def device_key(self, appkey: str, token: str, number: int) -> str:
        packed = number.to_bytes(4, "big")
        mac = self._empty_mac.copy()
        mac.update(packed + f"{appkey}/{token}".encode())
        return base64.urlsafe_b64encode(packed + mac.digest()[:_MAC]).decode().rstrip("=")

    def opened(self, sealed: bytes, context: str) -> str | None:
        """Return the secret, or None when it was sealed with another key or context."""
        try:
            return AESGCM(self.key).decrypt(sealed[:_NONCE], sealed[_NONCE:], context.encode()).decode()
        except (InvalidTag, ValueError):
            return None


class KeyFiles:
    """The files with the derived keys of a process, which may have further keys each time they are read."""

    def __init__(self, settings: Settings, purposes: Collection[KeyPurpose]) -> None:
        self._settings = settings
        self._purposes = purposes
        self._stamps = stamps_of(())

    def read(self) -> Mapping[KeyPurpose, Sequence[bytes]]:
        """Return the keys by purpose. CarillonError: a file is missing or cannot be used."""
        self._stamps = self._present_stamps()
        return _read_all(self._settings, self._purposes)

    def have_changed(self) -> bool:
        """Return whether a file is another one than at the last reading."""
        return self._stamps != self._present_stamps()

    def _present_stamps(self) -> "FileStamps":
        settings, master = self._settings, self._settings.key_file
        own = (settings.device_keys_file, settings.secrets_key_file)
        return stamps_of([*(Path(file) for file in own if file), master, next_master_file(master)])


FileStamps = Mapping[Path, tuple[int, int, int]]


def stamps_of(paths: Iterable[Path]) -> FileStamps:
    """Return by path of each file that is there what differs once the file is written anew or replaced."""
    stamps = {}
    for path in paths:
        with contextlib.suppress(OSError):
            found = path.stat()
            stamps[path] = (found.st_ino, found.st_mtime_ns, found.st_size)
    return stamps


class Keys:
    """The derived keys of a process. Methods whose key the process does not have raise CarillonError.

    The key of DEVICES issues and checks device keys, that of SECRETS seals and opens secrets. Of each purpose there may
    be two: the one in force issues and seals, and both are accepted, until one is dropped.

    UnavailableError: the installation has another key in force, which this process has not been given.
    """

    def __init__(self, by_purpose: Mapping[KeyPurpose, Sequence[bytes]], files: KeyFiles | None = None) -> None:
        """`by_purpose`: the keys, of which the first is in force until `switch` says otherwise.

        `files` are read again when a key comes into force that is not among them: it may be there by now.
        """
        self._accepted = {purpose: list(map(_HeldKey, keys)) for purpose, keys in by_purpose.items()}
        self._files = files
        self._former: dict[KeyPurpose, bytes] = {}
        self._dropped: dict[KeyPurpose, Collection[bytes]] = {}
        self._lacking: set[KeyPurpose] = set()

    def switch(
        self, purpose: KeyPurpose, in_force: bytes, former: bytes = b"", dropped: Collection[bytes] = frozenset()
    ) -> bool:
        """Issue and seal with the key that has the fingerprint `in_force`, and accept none of the `dropped` ones.

        `former`: the fingerprint of the key that was in force before, and is still accepted; empty: there is none.

        Return False if the process lacks one of the two keys. Methods that need the missing key then raise
        UnavailableError.
        """
        self._former[purpose], self._dropped[purpose] = former, dropped
        is_held = all(self.has(purpose, needed) for needed in (in_force, former) if needed)
        kept = [held for held in self._accepted[purpose] if held.fingerprint not in dropped]
        self._accepted[purpose] = sorted(kept, key=lambda held: held.fingerprint != in_force)
        (self._lacking.discard if is_held else self._lacking.add)(purpose)
        return is_held

    def has(self, purpose: KeyPurpose, fingerprint: bytes) -> bool:
        """Return whether the process has the key of this fingerprint, or finds it in its file now."""
        return self._holds(purpose, fingerprint) or (self._read(purpose) and self._holds(purpose, fingerprint))

    def held_fingerprints(self, purpose: KeyPurpose) -> Sequence[bytes]:
        """Return the fingerprints of the keys that the process has, or finds in its files now; none: it needs none."""
        if self._files is not None and self._files.have_changed():
            for each in self._accepted:
                self._read(each)
        return [held.fingerprint for held in self._accepted.get(purpose, ())]

    def seal(self, secret: str, context: str) -> bytes:
        """Encrypt a secret; `context` (the appkey) must be given again to open it."""
        nonce = os.urandom(_NONCE)
        return nonce + AESGCM(self._in_force(KeyPurpose.SECRETS).key).encrypt(nonce, secret.encode(), context.encode())

    def open(self, sealed: bytes, context: str) -> str:
        """Decrypt a secret; CarillonError when it was sealed with another master key or context."""
        for held in self._all(KeyPurpose.SECRETS):
            if (secret := held.opened(sealed, context)) is not None:
                return secret
        self.check(KeyPurpose.SECRETS)
        raise CarillonError(f"a secret of {context} was sealed with another master key") from None

    def sealed_anew(self, sealed: bytes, context: str) -> bytes | None:
        """Return the secret sealed with the key in force; None if it is already. CarillonError as for `open`."""
        if self._in_force(KeyPurpose.SECRETS).opened(sealed, context) is not None:
            return None
        return self.seal(self.open(sealed, context), context)

    def device_key(self, appkey: str, token: str, number: int, shown: str | None = None) -> str:
        """Return the key that proves ownership of a token; it contains the device's number, so no look-up is needed.

        `shown`: the key with which the device has proven itself. It stays the device's key if it belongs to a key that
        comes into force next: another process may have learned of that earlier.
        """
        in_force = self._in_force(KeyPurpose.DEVICES)
        for other in self._all(KeyPurpose.DEVICES)[1:] if shown else ():
            is_coming = other.fingerprint != self._former.get(KeyPurpose.DEVICES)
            if is_coming and (own := other.device_key(appkey, token, number)) == shown:
                return own
        return in_force.device_key(appkey, token, number)

    def device_number(self, appkey: str, token: str, key: str) -> int | None:
        """Return the device number in the key, or None when it is not the key of this token."""
        try:
            given = key.encode("ascii")
            number = int.from_bytes(base64.urlsafe_b64decode(given[:8])[:4], "big")
            for held in self._all(KeyPurpose.DEVICES):
                if hmac.compare_digest(given, held.device_key(appkey, token, number).encode()):
                    return number
        except ValueError:
            return None
        self.check(KeyPurpose.DEVICES)
        return None

    def possession_macs(self, text: str) -> Sequence[bytes]:
        """Return the 16-byte MACs of a possession code by all accepted keys, the one by the key in force first.

        Their key is derived from that of device keys, so no code is a valid device key, nor the reverse.
        """
        self._in_force(KeyPurpose.DEVICES)
        keys = (hmac.digest(held.key, b"carillon possession codes", "sha256") for held in self._all(KeyPurpose.DEVICES))
        return [hmac.digest(key, text.encode(), "sha256")[:_MAC] for key in keys]

    def receipt_macs(self, text: str) -> Sequence[bytes]:
        """Return the 16-byte MACs of a receipt's mark by all accepted keys, the one by the key in force first.

        Their key is derived from that of app secrets, and opens none of them.
        """
        keys = (hmac.digest(held.key, b"carillon receipts", "sha256") for held in self._all(KeyPurpose.SECRETS))
        return [hmac.digest(key, text.encode(), "sha256")[:_MAC] for key in keys]

    @property
    def purposes(self) -> Collection[KeyPurpose]:
        """The purposes of the keys that this process has."""
        return tuple(self._accepted)

    def fingerprint(self, purpose: KeyPurpose) -> bytes:
        """Return 16 bytes by which the key in force is recognised, and which reveal nothing of it."""
        return self._all(purpose)[0].fingerprint

    def only(self, purposes: Collection[KeyPurpose]) -> "Keys":
        """Return the keys of these purposes alone."""
        return Keys({purpose: [held.key for held in self._all(purpose)] for purpose in purposes})

    def _holds(self, purpose: KeyPurpose, fingerprint: bytes) -> bool:
        return any(held.fingerprint == fingerprint for held in self._accepted[purpose])

    def _read(self, purpose: KeyPurpose) -> bool:
        """Add the keys that are in the files by now; return whether there are further ones."""
        if self._files is None:
            return False
        try:
            found = map(_HeldKey, self._files.read()[purpose])
        except CarillonError as error:
            logger.error("the key files cannot be read again", error=str(error))
            return False
        known = {held.fingerprint for held in self._accepted[purpose]} | set(self._dropped.get(purpose, ()))
        further = [held for held in found if held.fingerprint not in known]
        self._accepted[purpose] += further
        return bool(further)

    def _all(self, purpose: KeyPurpose) -> Sequence[_HeldKey]:
        """Return the accepted keys, that in force first."""
        accepted = self._accepted.get(purpose)
        if accepted is None:
            raise CarillonError(
                f"this process was not given the key of {purpose.value}: set {_FILE_SETTINGS[purpose]}, or"
                " CARILLON_MASTER_KEY_FILE"
            )
        return accepted

    def _in_force(self, purpose: KeyPurpose) -> _HeldKey:
        accepted = self._all(purpose)
        self.check(purpose)
        return accepted[0]

    def check(self, purpose: KeyPurpose) -> None:
        """Check that the process has all accepted keys of this purpose.

        UnavailableError: the process lacks an accepted key.
        """
        if purpose in self._lacking:
            raise UnavailableError(
                f"this process has not been given all keys of {purpose.value} that are accepted at present"
            )


class MasterKey(Keys):
    """All keys of an installation, derived from its master key."""

    def __init__(self, master: bytes) -> None:
        if len(master) != _KEY:
            raise CarillonError(f"the master key must be {_KEY} bytes")
        super().__init__({purpose: [derive(master, purpose)] for purpose in KeyPurpose})

    @classmethod
    def load(cls, path: Path) -> "MasterKey":
        """Read the master key, or create it if there is no file. CarillonError: the file has another size."""
        create_master(path)
        return cls(read_master(path))


def load_keys(settings: Settings, purposes: Collection[KeyPurpose]) -> Keys:
    """Return the keys of these purposes, each from its own file if the settings name one, else from the master key.

    The master key is not read when it is not needed. CarillonError: a file is missing or cannot be used.
    """
    files = KeyFiles(settings, purposes)
    return Keys(files.read(), files)


def _read_all(settings: Settings, purposes: Collection[KeyPurpose]) -> Mapping[KeyPurpose, Sequence[bytes]]:
    files = {KeyPurpose.DEVICES: settings.device_keys_file, KeyPurpose.SECRETS: settings.secrets_key_file}
    by_purpose = {purpose: read_keys(Path(file), purpose) for purpose in purposes if (file := files[purpose])}
    if missing := set(purposes) - by_purpose.keys():
        if not settings.key_file.exists():
            raise CarillonError(_missing_text(settings.key_file, missing))
        masters = read_masters(settings.key_file)
        by_purpose |= {purpose: [derive(master, purpose) for master in masters] for purpose in missing}
    return by_purpose


def derive(master: bytes, purpose: KeyPurpose | OptionalPurpose) -> bytes:
    """Return the key of this purpose, derived from the master key."""
    return HKDF(algorithm=SHA256(), length=_KEY, salt=None, info=f"carillon {purpose.value}".encode()).derive(master)


def create_master(path: Path) -> None:
    """Create the master key unless the file exists. CarillonError: it cannot be written."""
    with _errors_of_writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            with written_beside(path, os.urandom(_KEY)) as fresh, contextlib.suppress(FileExistsError):
                os.link(fresh, path)  # of two processes that create it, one succeeds


def read_master(path: Path) -> bytes:
    """Read the master key. CarillonError: it cannot be used."""
    master = read_file(path)
    if len(master) != _KEY:
        raise CarillonError(f"{path} holds {len(master)} bytes; a master key has {_KEY}: restore it from a backup")
    return master


def next_master_file(path: Path) -> Path:
    """Return the file of the next master key, which is beside that of the present one."""
    return path.with_name(f"{path.name}.next")


def former_master_file(path: Path) -> Path:
    """Return the file to which a rotation moves the former master key."""
    return path.with_name(f"{path.name}.former")


def read_masters(path: Path) -> Sequence[bytes]:
    """Read the master key, and the next one if there is one. CarillonError: a file cannot be used."""
    following = next_master_file(path)
    return [read_master(path), *([read_master(following)] if following.exists() else [])]


def replace_master(path: Path) -> None:
    """Put the next master key in the place of the present one, which is kept as the former one.

    It may be repeated after a kill at any point. CarillonError: a file cannot be written.
    """
    following, former = next_master_file(path), former_master_file(path)
    with _errors_of_writing(path):
        if not following.exists():
            return
        with written_beside(former, path.read_bytes()) as fresh:
            os.replace(fresh, former)
        os.replace(following, path)
        make_durable(path.parent)


def fingerprint_of(key: bytes) -> bytes:
    """Return 16 bytes by which a derived key is recognised, and which reveal nothing of it."""
    return _HeldKey(key).fingerprint


def read_keys(path: Path, purpose: KeyPurpose | OptionalPurpose) -> Sequence[bytes]:
    """Read the derived key from the file that `write_keys` made, or two while the keys rotate.

    CarillonError: the file cannot be used.
    """
    keys = []
    try:
        for line in read_file(path).decode().strip().split("\n"):
            title, encoded = line.rsplit(": ", 1)
            key = base64.b64decode(encoded, validate=True)
            keys += [key] if title == _title(purpose) and len(key) == _KEY else [b""]
    except ValueError:
        keys = []
    if not keys or b"" in keys:
        raise CarillonError(f"{path} holds no key of {purpose.value}; `carillon keys export` makes such a file")
    return keys


def write_keys(path: Path, keys: Sequence[bytes], purpose: KeyPurpose | OptionalPurpose) -> None:
    """Write derived keys to a file of mode 600, in place of keys of the same purpose.

    CarillonError: the file holds anything else, or cannot be written.
    """
    content = "".join(f"{_title(purpose)}: {base64.b64encode(key).decode()}\n" for key in keys)
    write_file(path, content.encode(), f"{_title(purpose)}: ".encode(), f"key of {purpose.value}")


def _missing_text(path: Path, missing: Collection[KeyPurpose]) -> str:
    """Return the error of a process that has no file for these keys, and finds no master key at the path."""
    keys = " and ".join(f"the key of {purpose.value}" for purpose in KeyPurpose if purpose in missing)
    files = " and ".join(_FILE_SETTINGS[purpose] for purpose in KeyPurpose if purpose in missing)
    return (
        f"no master key is at {path}, and this process needs {keys}: set {files} to what `carillon keys export` writes"
        " on the machine that has the master key, or set CARILLON_MASTER_KEY_FILE"
    )


def _title(purpose: KeyPurpose | OptionalPurpose) -> str:
    return f"carillon key of {purpose.value}"


def read_file(path: Path, *, is_secret: bool = True) -> bytes:
    """Read a key file, with a warning if users beside its owner and group have access to a secret one."""
    try:
        content, mode = path.read_bytes(), path.stat().st_mode
    except OSError as error:
        raise CarillonError(f"the key file {path} cannot be read: {error.strerror}") from None
    if is_secret and mode & stat.S_IRWXO:
        logger.warning("every user of this machine has access to a key file", file=str(path), fix=f"chmod 600 {path}")
    return content


def write_file(path: Path, content: bytes, start: bytes, what: str) -> None:
    """Write a key file of mode 600, in place of one that begins with `start`; `what`: the name of such a file.

    CarillonError: there is another file, or it cannot be written.
    """
    with _errors_of_writing(path):
        if path.exists():
            old = path.read_bytes()
            if old == content:
                return
            if not old.startswith(start):
                raise CarillonError(f"{path} exists and holds no {what}: name another file")
        with written_beside(path, content) as fresh:
            os.replace(fresh, path)


@contextlib.contextmanager
def _errors_of_writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise CarillonError(f"the key file {path} cannot be written: {error.strerror}") from None


# Which keys of the installation are in force and accepted, as the fingerprints in the topic `apps` say.
#
# A rotation appends the fingerprint of another key, which names the present key as its predecessor: from then on all
# processes issue and seal with the new key, and accept both. The end of the rotation repeats the record, with the
# note that the predecessor is dropped.


class KeyChain(NamedTuple):
    """The keys of one purpose, by their fingerprints.

    `former`: the key before the one in force, which is accepted until it is dropped; empty: there is none.
    `used`: the keys that were in force before; none of them can come into force again.
    `dropped`: the keys that are not accepted any more.
    `waiting`: records whose predecessor is not in force yet: compaction may leave a later record before an earlier one.
    """

    in_force: bytes
    former: bytes = b""
    switched_ms: int = 0
    used: frozenset[bytes] = frozenset()
    dropped: frozenset[bytes] = frozenset()
    waiting: tuple[KeyFingerprint, ...] = ()


def extended(chain: KeyChain | None, noted: KeyFingerprint) -> KeyChain:
    """Return the chain after a record. A record without a predecessor changes nothing but an empty chain."""
    predecessors = frozenset([noted.predecessor] if noted.predecessor else [])
    newly_dropped = predecessors if noted.predecessor_dropped else frozenset()
    former = b"" if noted.predecessor_dropped else noted.predecessor
    if chain is None:
        return KeyChain(noted.fingerprint, former, noted.switched_ms, predecessors, newly_dropped)
    dropped = chain.dropped | newly_dropped
    if noted.fingerprint == chain.in_force:
        return chain._replace(former=b"" if chain.former in dropped else chain.former, dropped=dropped)
    if noted.predecessor != chain.in_force or noted.fingerprint in chain.used:
        waits = bool(noted.predecessor) and noted not in chain.waiting
        return chain._replace(dropped=dropped, waiting=(*chain.waiting, noted) if waits else chain.waiting)
    if chain.former:
        dropped |= {chain.former}
    used = chain.used | {chain.in_force}
    changed = KeyChain(noted.fingerprint, former, noted.switched_ms, used, dropped, chain.waiting)
    following = next((each for each in chain.waiting if each.predecessor == noted.fingerprint), None)
    return extended(changed, following) if following is not None else changed
