"""The disk of a simulated machine: real files, and what is left of them after a crash.

A process that was killed still holds its files open, so the next one gets a copy of them, in another directory. A kill
loses nothing that was written. A power cut also loses what was not synced: SQLite files with synchronous=NORMAL go back
to an earlier commit, and a file that was about to replace another one is torn.
"""

import shutil
from pathlib import Path
from random import Random

_WAL_HEADER = 32
_FRAME_HEADER = 24
_SHM_BACKFILL_ATTEMPTED = 128
"""Offset in the -shm file of the number of frames that may be in the database file already."""


class Disk:
    """`path` is the directory for the files of the machine's present process."""

    def __init__(self, directory: Path, random: Random) -> None:
        self._directory = directory
        self._random = random
        self._generation = 0
        self.path.mkdir(parents=True)

    @property
    def path(self) -> Path:
        return self._directory / str(self._generation)

    def after_stop(self) -> None:
        """Give the next process what the former one left: it was killed, or it has ended."""
        self._copy(power_cut=False)

    def after_power_cut(self) -> None:
        """Give the next process what the former one had on the disk when the machine lost its power."""
        self._copy(power_cut=True)

    def lose(self) -> None:
        """Give the next process an empty disk."""
        self._generation += 1
        self.path.mkdir()

    def _copy(self, *, power_cut: bool) -> None:
        source = self.path
        self.lose()
        for path in sorted(source.rglob("*")):
            target = self.path / path.relative_to(source)
            if path.is_dir():
                target.mkdir()
            elif path.name.endswith(".new"):
                self._tear(path, target)
            elif power_cut and path.name.endswith("-wal"):
                self._cut_wal(path, target)
            elif not path.name.endswith("-shm"):
                shutil.copyfile(path, target)

    def _tear(self, path: Path, target: Path) -> None:
        content = path.read_bytes()
        target.write_bytes(content[: int(self._random.random() * (len(content) + 1))])

    def _cut_wal(self, path: Path, target: Path) -> None:
        """Keep a random number of the frames, at least those that may be in the database file already.

        Without a -shm file nobody has opened the file since the latest crash, and what it held then is on the disk.
        """
        content = path.read_bytes()
        shm_path = path.with_name(path.name.removesuffix("-wal") + "-shm")
        if len(content) < _WAL_HEADER or not shm_path.exists():
            target.write_bytes(content)
            return
        frame = _FRAME_HEADER + int.from_bytes(content[8:12], "big")
        count = (len(content) - _WAL_HEADER) // frame
        shm = shm_path.read_bytes()
        first = int.from_bytes(shm[_SHM_BACKFILL_ATTEMPTED : _SHM_BACKFILL_ATTEMPTED + 4], "little")
        kept = first + int(self._random.random() * (max(0, count - first) + 1))
        target.write_bytes(content[: _WAL_HEADER + kept * frame])
