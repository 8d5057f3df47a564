"""Files that chdb writes exports to, beside the store. A closed file is removed, one of a killed process is not."""

from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import IO, cast

_PREFIX = "export"


def new_export_file(store: Path) -> IO[bytes]:
    """Return a new file beside the store at the path."""
    return cast(IO[bytes], NamedTemporaryFile(dir=store.parent, prefix=_PREFIX))


def remove_export_files(store: Path) -> None:
    """Remove the files that earlier processes left beside the store, which this process has locked."""
    for file in store.parent.glob(f"{_PREFIX}*"):
        if file.is_file():
            file.unlink(missing_ok=True)
