"""The epoch of the process that changes apps (see AppDirectory), and app look-ups for a follower's thread."""

import asyncio
from collections.abc import Callable

from protos.registry.v1.apps_pb2 import App, AppFact
from protos.runtime.v1.log_pb2 import Meta
from services.domain import ids
from services.domain.apps import APPS_PARTITION, OUTDATED, AppDirectory
from services.errors import UnavailableError
from services.log.port import Log, NewRecord, append_until_accepted
from services.process.clock import Clock
from services.registry.settings import ROLE_NAME


class AppEpochs:
    """The epoch under which this process changes apps. A former owner's late record is written over by the valid one,
    because compaction keeps the last record of a key."""

    def __init__(self, log: Log, apps: AppDirectory, clock: Clock, epoch: Callable[[], int]) -> None:
        """`epoch` returns the epoch of the first partition of `devices`, which is above those of all former owners."""
        self._log = log
        self._apps = apps
        self._clock = clock
        self._epoch = epoch
        self.current = 0

    async def begin(self) -> bool:
        """Announce the epoch; return once all records before it are applied. False: there is a later owner by now."""
        epoch = self._epoch()
        announcement = AppFact(meta=self._meta(epoch))
        key = f"epoch/{announcement.meta.event_id.hex()}".encode()
        await self._append([NewRecord(*APPS_PARTITION, key, announcement.SerializeToString())])
        self.current = epoch  # not before: readers refuse a fact whose epoch is not announced yet
        return self._apps.epoch == self.current

    async def repair(self) -> None:
        """Run for ever: append the valid record after each refused one of a former owner."""
        while True:
            changed = self._apps.refused_changed
            if valid := [(key, fact) for key in sorted(self._apps.refused) if (fact := self._apps.valid(key))]:
                for _, fact in valid:
                    fact.meta.CopyFrom(self._meta(self.current))
                await self._append([NewRecord(*APPS_PARTITION, key, fact.SerializeToString()) for key, fact in valid])
            else:
                await changed.wait()

    async def _append(self, new_records: list[NewRecord]) -> None:
        offsets = await append_until_accepted(self._log, new_records, ROLE_NAME)
        await self._apps.applied.wait([(APPS_PARTITION, max(offsets))])

    def _meta(self, epoch: int) -> Meta:
        return Meta(event_id=ids.event_id(), time_ms=self._clock.now_ms(), writer=ROLE_NAME, epoch=epoch)


# App look-ups from a follower's thread.

_REFRESH_S = 3.0
_MAX_UNANSWERED = 5


class AppLookup:
    """Finds apps for a follower's thread. For an unknown app it refreshes the directory first: the app may be new."""

    def __init__(self, apps: AppDirectory) -> None:
        self._apps = apps
        self._loop: asyncio.AbstractEventLoop | None = None

    def use_running_loop(self) -> None:
        """Refresh in the event loop that is running now; without a loop `find` never refreshes."""
        self._loop = asyncio.get_running_loop()

    def find(self, appkey: str) -> App | None:
        """Return the app; None only if the log holds none, so it waits while the log does not answer.

        UnavailableError: the event loop runs nothing for 15 s, because it waits for this thread to end.
        """
        unanswered = 0
        while (app := self._apps.get(appkey)) is None and self._loop is not None:
            try:
                is_current = asyncio.run_coroutine_threadsafe(self._apps.refresh(), self._loop).result(_REFRESH_S)
            except TimeoutError:
                is_current, unanswered = False, unanswered + 1
                if unanswered >= _MAX_UNANSWERED:
                    raise UnavailableError(OUTDATED) from None
            if is_current:
                return self._apps.get(appkey)
        return app
