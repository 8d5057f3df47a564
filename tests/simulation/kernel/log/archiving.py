"""What `carillon archive` does now and then in a world: old records leave the log, and are read from the archive."""

from collections.abc import Callable

from services.domain.topics import archived_partitions
from services.errors import UnavailableError
from services.log.archive.archiver import Archiver
from tests.simulation.kernel.installation import Installation
from tests.simulation.kernel.process import Process
from tests.simulation.kernel.world import LoggedError

ARCHIVER = "archiver"
"""The name of the process, and the beginning of the name of one that runs beside it."""

_SEGMENT_BYTES = 200
"""One record, or a few."""


class Archiving:
    """Starts one process of this name after the other; each archives what is old enough, and ends."""

    def __init__(self, installation: Installation, name: str = ARCHIVER, segment_bytes: int = _SEGMENT_BYTES) -> None:
        self._installation = installation
        self._world = installation.world
        self._name = name
        self._segment_bytes = segment_bytes
        self._process: Process | None = None

    def start(self, older_than_s: float, then: Callable[[], object] = lambda: None) -> None:
        """Archive the records that are older; a process that has not done so yet is killed.

        `then` is called when the new process ends and records have left the log meanwhile.
        """
        if self._process is not None:
            self._process.kill()
        self._process = self._world.process(self._name)
        begun = self._count_archived()
        self._process.at_death(lambda: then() if self._count_archived() > begun else None)
        self._process.start(self._archive(self._process, older_than_s))

    def _count_archived(self) -> int:
        """Return how many records have left the log."""
        broker = self._installation.broker
        return sum(broker.first(partition) for partition in archived_partitions(broker.partitions))

    async def _archive(self, process: Process, older_than_s: float) -> None:
        installation = self._installation
        archiver = Archiver(
            installation.archived_log(),
            self._world.clock(),
            archived_partitions(installation.broker.partitions),
            int(older_than_s * 1000),
            segment_bytes=self._segment_bytes,
        )
        try:
            self._world.trace.event("archived", records=await archiver.archive_old())
        except UnavailableError as error:
            self._world.trace.event("not archived", error=str(error))
        except Exception as error:
            self._world.errors.append(LoggedError(self._name, "records could not be archived", repr(error)))
        process.kill()
