"""Copies of the archive, which may be taken while a process adds segments."""

from pathlib import Path

from services.runtime.errors import CarillonError
from services.runtime.log.archive.segments import is_whole, parse_name
from services.runtime.log.durable import make_durable


def copy_archive(source: Path, target: Path) -> int:
    """Copy every segment of the archive, checked and durable on return; return their bytes.

    CarillonError: the source cannot be read or is damaged, or the target cannot be written.
    """
    size = 0
    try:
        for path in sorted(source.rglob("*.pb.zst")):
            data = path.read_bytes()
            name = parse_name(path.name)
            if name is None or not is_whole(name, data):
                raise CarillonError(f"the archive's segment {path} is damaged: put a copy from a backup in its place")
            copy = target / path.relative_to(source)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(data)
            make_durable(copy)
            size += len(data)
        for directory in (target, *(path for path in target.rglob("*") if path.is_dir())) if size else ():
            make_durable(directory)
    except OSError as error:
        raise CarillonError(f"the archive {source} cannot be copied to {target}: {error}") from error
    return size
