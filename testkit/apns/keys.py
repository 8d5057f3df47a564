"""APNs keys as Apple issues them to teams, and a search of files for leaked parts of a key."""

from collections.abc import Iterable
from pathlib import Path

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa

KEY_ID, TEAM_ID = "ABC123DEFG", "TEAM456789"
Private = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey


def pem(key: Private | None = None, encryption: serialization.KeySerializationEncryption | None = None) -> str:
    """Return a new key in the format of Apple's .p8 files."""
    key = key or ec.generate_private_key(ec.SECP256R1())
    form = serialization.PrivateFormat.PKCS8
    encoded = key.private_bytes(serialization.Encoding.PEM, form, encryption or serialization.NoEncryption())
    return encoded.decode()


def canaries(text: str) -> list[bytes]:
    """Return the lines of the key's body; a file that contains one of them leaks the key."""
    return [line.encode() for line in text.splitlines() if line and "-----" not in line]


def files_containing(directory: Path, words: Iterable[bytes]) -> list[Path]:
    """Return the files below a directory that contain one of the words."""
    words = list(words)
    files = [path for path in directory.rglob("*") if path.is_file()]
    assert files
    return [path for path in files if any(word in path.read_bytes() for word in words)]
