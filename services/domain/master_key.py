"""The installation's master key, and the keys derived from it for sealed secrets and device keys.

The master key is 32 random bytes in a file of mode 600, created by the first `carillon up` or by `carillon keys export
--create`. The other keys are derived from it by HKDF-SHA256, and may be given to processes in files of their own, which
do not reveal the master key.
"""

import base64
import contextlib
import hashlib
import hmac
import os
import stat
from collections.abc import Collection, Iterator, Mapping
from enum import Enum
from functools import cached_property
from pathlib import Path

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from services.runtime.errors import CarillonError
from services.runtime.log.durable import written_beside
from services.runtime.process.logs import logger
from services.runtime.process.settings import Settings

_KEY = 32
_NONCE = 12
_MAC = 16


class KeyPurpose(Enum):
    """What a derived key is used for. Neither the key of the other purpose nor the master key follows from it."""

    DEVICES = "device keys"
    SECRETS = "app secrets"


_FILE_SETTINGS = {
    KeyPurpose.DEVICES: "CARILLON_DEVICE_KEYS_FILE",
    KeyPurpose.SECRETS: "CARILLON_SECRETS_KEY_FILE",
}


def sealed_digest(sealed: bytes) -> bytes:
    """Return the digest that names a sealed secret where the sealed secret itself is not shown."""
    return hashlib.sha256(sealed).digest()


class Keys:
    """The derived keys of a process. Methods whose key the process does not have raise CarillonError.

    The key of DEVICES issues and checks device keys, that of SECRETS seals and opens secrets.
    """

    def __init__(self, by_purpose: Mapping[KeyPurpose, bytes]) -> None:
        self._by_purpose = by_purpose

    def seal(self, secret: str, context: str) -> bytes:
        """Encrypt a secret; `context` (the appkey) must be given again to open it."""
        nonce = os.urandom(_NONCE)
        return nonce + self._sealing().encrypt(nonce, secret.encode(), context.encode())

    def open(self, sealed: bytes, context: str) -> str:
        """Decrypt a secret; CarillonError when it was sealed with another master key or context."""
        try:
            return self._sealing().decrypt(sealed[:_NONCE], sealed[_NONCE:], context.encode()).decode()
        except (InvalidTag, ValueError):
            raise CarillonError(f"a secret of {context} was sealed with another master key") from None

    def device_key(self, appkey: str, token: str, number: int) -> str:
        """Return the key that proves ownership of a token; it contains the device's number, so no look-up is needed."""
        packed = number.to_bytes(4, "big")
        return base64.urlsafe_b64encode(packed + self._device_mac(appkey, token, packed)).decode().rstrip("=")

    def device_number(self, appkey: str, token: str, key: str) -> int | None:
        """Return the device number in the key, or None when it is not the key of this token."""
        try:
            given = key.encode("ascii")
            number = int.from_bytes(base64.urlsafe_b64decode(given[:8])[:4], "big")
            right = self.device_key(appkey, token, number).encode()
        except ValueError:
            return None
        return number if hmac.compare_digest(given, right) else None

    def possession_mac(self, text: str) -> bytes:
        """Return the MAC of 16 bytes of a possession code; no device key is one, nor the reverse."""
        key = hmac.digest(self._derived(KeyPurpose.DEVICES), b"carillon possession codes", "sha256")
        return hmac.digest(key, text.encode(), "sha256")[:_MAC]

    def _device_mac(self, appkey: str, token: str, packed: bytes) -> bytes:
        mac = self._empty_device_mac.copy()
        mac.update(packed + f"{appkey}/{token}".encode())
        return mac.digest()[:_MAC]

    @cached_property
    def _empty_device_mac(self) -> hmac.HMAC:
        """The MAC before any text, made once: copying it takes half the time of keying another one."""
        return hmac.new(self._derived(KeyPurpose.DEVICES), digestmod=hashlib.sha256)

    @property
    def purposes(self) -> Collection[KeyPurpose]:
        """The purposes of the keys that this process has."""
        return tuple(self._by_purpose)

    def fingerprint(self, purpose: KeyPurpose) -> bytes:
        """Return 16 bytes by which the key is recognised, and which reveal nothing of it."""
        return hmac.digest(self._derived(purpose), b"carillon fingerprint", "sha256")[:16]

    def only(self, purposes: Collection[KeyPurpose]) -> "Keys":
        """Return the keys of these purposes alone."""
        return Keys({purpose: self._derived(purpose) for purpose in purposes})

    def _sealing(self) -> AESGCM:
        return AESGCM(self._derived(KeyPurpose.SECRETS))

    def _derived(self, purpose: KeyPurpose) -> bytes:
        key = self._by_purpose.get(purpose)
        if key is None:
            raise CarillonError(
                f"this process was not given the key of {purpose.value}: set {_FILE_SETTINGS[purpose]}, or"
                " CARILLON_MASTER_KEY_FILE"
            )
        return key


class MasterKey(Keys):
    """All keys of an installation, derived from its master key."""

    def __init__(self, master: bytes) -> None:
        if len(master) != _KEY:
            raise CarillonError(f"the master key must be {_KEY} bytes")
        super().__init__({purpose: derive(master, purpose) for purpose in KeyPurpose})

    @classmethod
    def load(cls, path: Path) -> "MasterKey":
        """Read the master key, or create it if there is no file. CarillonError: the file has another size."""
        create_master(path)
        return cls(read_master(path))


def load_keys(settings: Settings, purposes: Collection[KeyPurpose]) -> Keys:
    """Return the keys of these purposes, each from its own file if the settings name one, else from the master key.

    The master key is not read when it is not needed. CarillonError: a file is missing or cannot be used.
    """
    files = {KeyPurpose.DEVICES: settings.device_keys_file, KeyPurpose.SECRETS: settings.secrets_key_file}
    by_purpose = {purpose: read_key(Path(file), purpose) for purpose in purposes if (file := files[purpose])}
    if missing := set(purposes) - by_purpose.keys():
        if not settings.key_file.exists():
            raise CarillonError(_missing_text(settings.key_file, missing))
        master = read_master(settings.key_file)
        by_purpose |= {purpose: derive(master, purpose) for purpose in missing}
    return Keys(by_purpose)


def derive(master: bytes, purpose: KeyPurpose) -> bytes:
    """Return the key of this purpose."""
    return HKDF(algorithm=SHA256(), length=_KEY, salt=None, info=f"carillon {purpose.value}".encode()).derive(master)


def create_master(path: Path) -> None:
    """Create the master key unless there is a file. CarillonError: it cannot be written."""
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


def read_key(path: Path, purpose: KeyPurpose) -> bytes:
    """Read a derived key from the file that `write_key` made. CarillonError: it cannot be used."""
    try:
        title, encoded = read_file(path).decode().strip().rsplit(": ", 1)
        key = base64.b64decode(encoded, validate=True)
    except ValueError:
        title, key = "", b""
    if title != _title(purpose) or len(key) != _KEY:
        raise CarillonError(f"{path} holds no key of {purpose.value}; `carillon keys export` makes such a file")
    return key


def write_key(path: Path, key: bytes, purpose: KeyPurpose) -> None:
    """Write a derived key to a file of mode 600, in place of a key of the same purpose.

    CarillonError: the file holds anything else, or cannot be written.
    """
    content = f"{_title(purpose)}: {base64.b64encode(key).decode()}\n".encode()
    write_file(path, content, f"{_title(purpose)}: ".encode(), f"key of {purpose.value}")


def _missing_text(path: Path, missing: Collection[KeyPurpose]) -> str:
    """Return the error of a process that has no file for these keys, and finds no master key at the path."""
    keys = " and ".join(f"the key of {purpose.value}" for purpose in KeyPurpose if purpose in missing)
    files = " and ".join(_FILE_SETTINGS[purpose] for purpose in KeyPurpose if purpose in missing)
    return (
        f"no master key is at {path}, and this process needs {keys}: set {files} to what `carillon keys export` writes"
        " on the machine that has the master key, or set CARILLON_MASTER_KEY_FILE"
    )


def _title(purpose: KeyPurpose) -> str:
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
