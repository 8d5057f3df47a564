"""The installation's master key, and the keys derived from it for sealed secrets and device keys.

The master key is 32 random bytes in a file of mode 600, created at the first start. Other keys are derived from it by
HKDF-SHA256.
"""

import base64
import contextlib
import hashlib
import hmac
import os
import tempfile
from pathlib import Path

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from services.runtime.errors import CarillonError

_MASTER = 32
_NONCE = 12
_MAC = 16


class MasterKey:
    """Seals secrets, and issues and checks device keys. All roles of an installation have the same master key."""

    def __init__(self, master: bytes) -> None:
        if len(master) != _MASTER:
            raise CarillonError(f"the master key must be {_MASTER} bytes")
        self._sealing = AESGCM(_derive(master, b"carillon app secrets"))
        self._device = _derive(master, b"carillon device keys")

    @classmethod
    def load(cls, path: Path) -> "MasterKey":
        """Read the master key, or create it if there is no file. CarillonError: the file has another size."""
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            _create(path)
        master = path.read_bytes()
        if len(master) != _MASTER:
            raise CarillonError(f"{path} holds {len(master)} bytes; a master key has {_MASTER}")
        return cls(master)

    def seal(self, secret: str, context: str) -> bytes:
        """Encrypt a secret; `context` (the appkey) must be given again to open it."""
        nonce = os.urandom(_NONCE)
        return nonce + self._sealing.encrypt(nonce, secret.encode(), context.encode())

    def open(self, sealed: bytes, context: str) -> str:
        """Decrypt a secret; CarillonError when it was sealed with another master key or context."""
        try:
            return self._sealing.decrypt(sealed[:_NONCE], sealed[_NONCE:], context.encode()).decode()
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

    def _device_mac(self, appkey: str, token: str, packed: bytes) -> bytes:
        text = packed + f"{appkey}/{token}".encode()
        return hmac.digest(self._device, text, hashlib.sha256)[:_MAC]


def _create(path: Path) -> None:
    """Create the key file atomically unless another process has created it; the file is durable on return."""
    descriptor, fresh = tempfile.mkstemp(dir=path.parent, prefix=f"{path.name}.")
    with os.fdopen(descriptor, "wb") as file:
        file.write(os.urandom(_MASTER))
        file.flush()
        os.fsync(file.fileno())
    with contextlib.suppress(FileExistsError):
        os.link(fresh, path)
    os.unlink(fresh)
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def _derive(master: bytes, purpose: bytes) -> bytes:
    return HKDF(algorithm=SHA256(), length=_MASTER, salt=None, info=purpose).derive(master)
