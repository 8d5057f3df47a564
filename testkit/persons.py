"""Keys of persons for tests."""

from pathlib import Path

from services.domain.person_keys import KeyFiles, KeyRing


def key_ring(directory: Path) -> KeyRing:
    """Return the keys in a directory, which are made if there are none."""
    directory.parent.mkdir(exist_ok=True)
    return KeyRing(KeyFiles(directory) if directory.exists() else KeyFiles.create(directory))
