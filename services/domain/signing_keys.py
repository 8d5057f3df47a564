"""The keys of the roles that sign their records: a private one of each, and the public ones that all processes have.

A private key is derived from the installation's master key, as the other keys are; `carillon keys export` writes it to
a file for the process of that role alone. The public keys are in one file for all processes, which is no secret: one a
line, also those of former keys, which check the records that were signed with them.
"""

import base64
import binascii
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from services.domain.master_key import former_master_file, read_file, read_master, read_masters, write_file
from services.domain.settings import Settings
from services.errors import CarillonError

SIGNERS = ("registry", "accounts")
"""The roles that sign their records."""

PUBLIC_KEYS_FILE = "public.keys"
"""The file in the data directory of `carillon up` with the public keys."""

MOST_PUBLIC_KEYS = 8
"""Public keys of a role that are valid at a time: the present one, the next one while it changes, and former ones."""

_SEED = 32


class SigningKeys(NamedTuple):
    """The private keys of a process by role, and the public keys by role; without public keys nothing is checked."""

    private: Mapping[str, Ed25519PrivateKey]
    public: Mapping[str, Sequence[Ed25519PublicKey]]


def load_signing_keys(settings: Settings, role: str | None, *, reads_master: bool) -> SigningKeys:
    """Return the keys of a process of this role; `role` None: all roles run in it, and it has the master key.

    `reads_master`: without a file, the public keys are derived from the master key, if that is there.

    CarillonError: a file cannot be used, or the public keys lack that of a private one.
    """
    private = _private(settings, role)
    file = Path(settings.public_keys_file) if settings.public_keys_file else settings.data / PUBLIC_KEYS_FILE
    if role is None and private and not settings.public_keys_file:
        write_public_keys(file, {signer: key.public_key() for signer, key in private.items()})
    public: Mapping[str, Sequence[Ed25519PublicKey]] = {}
    if settings.public_keys_file or file.exists():
        public = read_public_keys(file)
    elif reads_master and settings.key_file.exists():
        former = former_master_file(settings.key_file)
        masters = [*read_masters(settings.key_file), *([read_master(former)] if former.exists() else [])]
        public = {signer: [derive_signing_key(each, signer).public_key() for each in masters] for signer in SIGNERS}
    for signer, key in private.items():
        if public and key.public_key() not in public.get(signer, ()):
            raise CarillonError(
                f"{file} lacks the public key of the role {signer} that belongs to its signing key, so that no process"
                " would believe what this one writes: write the file anew with `carillon keys export --public-keys`"
            )
    return SigningKeys(private, public)


def derive_signing_key(master: bytes, role: str) -> Ed25519PrivateKey:
    """Return the private key with which the role signs."""
    info = f"carillon signatures of {role}".encode()
    return Ed25519PrivateKey.from_private_bytes(
        HKDF(algorithm=SHA256(), length=_SEED, salt=None, info=info).derive(master)
    )


def read_signing_key(path: Path, role: str) -> Ed25519PrivateKey:
    """Read a role's private key from the file that `write_signing_key` made. CarillonError: it cannot be used."""
    try:
        title, encoded = read_file(path).decode().strip().rsplit(": ", 1)
        seed = base64.b64decode(encoded, validate=True)
    except ValueError:
        title, seed = "", b""
    if title != _title(role) or len(seed) != _SEED:
        raise CarillonError(
            f"{path} holds no signing key of the role {role}; `carillon keys export --{role}-signing-key` makes it"
        )
    return Ed25519PrivateKey.from_private_bytes(seed)


def write_signing_key(path: Path, key: Ed25519PrivateKey, role: str) -> None:
    """Write a role's private key to a file of mode 600, in place of another one of the role.

    CarillonError: the file holds anything else, or cannot be written.
    """
    content = f"{_title(role)}: {_encoded(key.private_bytes_raw())}\n"
    write_file(path, content.encode(), f"{_title(role)}: ".encode(), f"signing key of the role {role}")


def read_public_keys(path: Path) -> Mapping[str, Sequence[Ed25519PublicKey]]:
    """Read the public keys by role. CarillonError: the file cannot be used."""
    found: dict[str, list[Ed25519PublicKey]] = {}
    try:
        for line in read_file(path, is_secret=False).decode().splitlines():
            role, encoded = line.split()
            found.setdefault(role, []).append(
                Ed25519PublicKey.from_public_bytes(base64.b64decode(encoded, validate=True))
            )
    except (ValueError, binascii.Error):
        found = {}
    if set(found) != set(SIGNERS) or any(len(keys) > MOST_PUBLIC_KEYS for keys in found.values()):
        raise CarillonError(
            f"{path} must hold lines such as `registry KEY` and `accounts KEY`, at most {MOST_PUBLIC_KEYS} of a role;"
            " `carillon keys export --public-keys` makes it"
        )
    return found


def write_public_keys(path: Path, public: Mapping[str, Ed25519PublicKey]) -> None:
    """Write the public keys to the file, each before the former keys of its role that the file has.

    CarillonError: the file holds anything else, or cannot be written.
    """
    former = read_public_keys(path) if path.exists() else {}
    lines = []
    for role, key in public.items():
        others = [each for each in former.get(role, ()) if each != key]
        lines += [f"{role} {_encoded(each.public_bytes_raw())}\n" for each in [key, *others][:MOST_PUBLIC_KEYS]]
    write_file(path, "".join(lines).encode(), b"", "public keys")


def _private(settings: Settings, role: str | None) -> Mapping[str, Ed25519PrivateKey]:
    if role is not None and role not in SIGNERS:
        return {}
    if role is not None and settings.signing_key_file:
        return {role: read_signing_key(Path(settings.signing_key_file), role)}
    if not settings.key_file.exists():
        return {}
    master = read_master(settings.key_file)
    return {signer: derive_signing_key(master, signer) for signer in SIGNERS if role in (None, signer)}


def _title(role: str) -> str:
    return f"carillon signing key of {role}"


def _encoded(key: bytes) -> str:
    return base64.b64encode(key).decode()
