"""Records that cannot be read for a while: files of the archive that are lost or damaged, and the beginning of the log.

An operator then does what the error says, and brings them back from a backup.
"""

from collections.abc import Iterable
from pathlib import Path
from random import Random

from services.domain.topics import archived_partitions
from tests.simulation.kernel.log.broker import Broker
from tests.simulation.kernel.world import LoggedError

MISSING, CUT_OFF, CHANGED = "missing", "cut-off", "changed"
"""What may have become of a file of the archive."""

KINDS = frozenset({"archive_damaged", "log_trimmed"})
"""The kinds of faults after which records cannot be read."""

_ERRORS = (
    "those between were removed, and a rebuild would miss them too. Restore a backup of the log",
    "the archive has lost a segment",
    "is damaged: put a copy from a backup in its place",
    "which the log holds no more: is it mounted? Bring its files back",
    "is stopping; try again",
)
"""What a process says that needs such a record: what is missing, and what to do. The last one is what its other
services say while it ends."""


class Losses:
    """Loses a share of the archive's files, or of the records of the log, and brings them back."""

    def __init__(self, archive: Path, broker: Broker, random: Random) -> None:
        self._archive = archive
        self._broker = broker
        self._random = random
        self._backup: dict[Path, bytes] = {}
        self._has_trimmed = False

    def damage_archive(self, how: str) -> bool:
        """Lose, cut off or change about half of the archive's files, at least one; return whether there are any."""
        paths = [path for path in sorted(self._archive.rglob("*.pb.zst")) if path not in self._backup]
        chosen = [path for path in paths if self._random.random() < 0.5]
        for path in chosen or self._random.sample(paths, min(len(paths), 1)):
            content = self._backup[path] = path.read_bytes()
            if how == MISSING:
                path.unlink()
            else:
                at = self._random.randrange(len(content))
                path.write_bytes(
                    content[:at] + (b"" if how == CUT_OFF else bytes([content[at] ^ 1]) + content[at + 1 :])
                )
        return bool(paths)

    def trim_log(self) -> bool:
        """Remove the first part of each partition that could be archived; return whether any record was removed.

        There is no archive.
        """
        self._has_trimmed = True
        partitions = archived_partitions(self._broker.partitions)
        for partition in partitions:
            self._broker.trim(partition, self._random.randint(0, self._broker.end(partition)))
        return any(self._broker.first(partition) for partition in partitions)

    def bring_back(self) -> None:
        """Bring back what was lost."""
        for path, content in self._backup.items():
            path.write_bytes(content)
        self._backup.clear()
        if self._has_trimmed:
            self._has_trimmed = False
            self._broker.restore()


def is_explained(error: LoggedError, kinds: Iterable[str]) -> bool:
    """Return whether the error is that of a process that needed a record which a fault of these kinds had lost."""
    return not KINDS.isdisjoint(kinds) and any(text in error.details for text in _ERRORS)
