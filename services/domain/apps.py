"""The app directory: a projection of the `apps` topic in memory."""

import asyncio
from collections.abc import Callable
from typing import assert_never

from google.protobuf.message import DecodeError

from protos.registry.v1.apps_pb2 import App, AppFact, BroadcastCount, Pause
from services.domain.revocations import NONE_REVOKED, RevokedKeys
from services.domain.topics import APPS, decode
from services.runtime.errors import UnavailableError
from services.runtime.log.port import LOG_UNAVAILABLE, Log, Partition, Reader, Record
from services.runtime.process import background
from services.runtime.process.logs import logger
from services.runtime.process.retries import retry_until_available
from services.runtime.projection.health import Followed
from services.runtime.projection.positions import AppliedPositions

INSTALLATION_PAUSE_KEY = b"installation/pause"
"""The key of the record that pauses all apps at once."""

_PARTITION = Partition(APPS.name, 0)
_REFRESH_S = 2.0


class AppDirectory:
    """Service that provides apps by appkey, the revoked device keys, and which apps are paused.

    It runs before all services that use it.
    """

    name = "apps"

    def __init__(self, log: Log) -> None:
        self._log = log
        self._apps: dict[str, App] = {}
        self._revoked: dict[tuple[str, int], RevokedKeys] = {}
        self._installation_pause: Pause | None = None
        self._broadcasts: dict[str, BroadcastCount] = {}
        self._listeners: list[Callable[[str], None]] = []
        self._pauses_changed = asyncio.Event()
        self.applied = AppliedPositions()
        self._refreshing: asyncio.Task[None] | None = None
        self._next_refresh: asyncio.Task[None] | None = None

    @property
    def followed(self) -> Followed:
        """What the process's health checks of the directory."""
        return Followed(self.name, self.applied, [_PARTITION])

    def get(self, appkey: str) -> App | None:
        return self._apps.get(appkey)

    def all(self) -> list[App]:
        """Return every app, by creation time."""
        return sorted(self._apps.values(), key=lambda app: (app.created_ms, app.appkey))

    def broadcasts(self, appkey: str) -> BroadcastCount:
        """Return the latest count of broadcasts of an app with a quota; an empty one if none was counted."""
        return self._broadcasts.get(appkey) or BroadcastCount(appkey=appkey)

    def revoked(self, appkey: str, partition: int) -> RevokedKeys:
        """Return the revoked keys of the app's devices in the partition."""
        return self._revoked.get((appkey, partition), NONE_REVOKED)

    def is_revoked(self, appkey: str, partition: int, number: int) -> bool:
        """Return whether the key of the device with this number is revoked."""
        return number in self.revoked(appkey, partition)

    def on_revoked(self, listener: Callable[[str], None]) -> None:
        """Call `listener` with the appkey, in the event loop, whenever more keys of an app are revoked."""
        self._listeners.append(listener)

    @property
    def installation_pause(self) -> Pause | None:
        """The pause of all apps at once, if there is one."""
        return self._installation_pause

    def is_paused(self, appkey: str) -> bool:
        """Return whether nothing of the app may be sent now, because of its own pause or that of all apps."""
        app = self._apps.get(appkey)
        return self._installation_pause is not None or (app is not None and app.HasField("pause"))

    @property
    def has_pauses(self) -> bool:
        """Whether any app is paused."""
        return self._installation_pause is not None or any(app.HasField("pause") for app in self._apps.values())

    @property
    def pauses_changed(self) -> asyncio.Event:
        """An event that the next pause or resume sets. Get it before asking `is_paused`, then wait for it."""
        return self._pauses_changed

    async def until_resumed(self, appkey: str) -> None:
        """Return once the app is not paused."""
        while self.is_paused(appkey):
            await self._pauses_changed.wait()

    async def refresh(self) -> None:
        """Return once all records now in the log are applied, or after two seconds.

        Callers share the next refresh: the one in progress may have read the end of the log too early for them.
        """
        if self._next_refresh is None:
            self._next_refresh = background.start("refresh of the apps", self._refresh(self._refreshing))
        await asyncio.wait([self._next_refresh], timeout=_REFRESH_S)

    async def _refresh(self, earlier: "asyncio.Task[None] | None") -> None:
        if earlier is not None:
            await asyncio.wait([earlier])
        self._refreshing, self._next_refresh = self._next_refresh, None
        try:
            async with asyncio.timeout(_REFRESH_S):
                end = (await self._log.ends([_PARTITION]))[_PARTITION]
                if end:
                    await self.applied.wait([(_PARTITION, end - 1)])
        except (TimeoutError, UnavailableError) as error:
            logger.warning("the apps may not be up to date", error=str(error))

    async def run(self, ready: asyncio.Event) -> None:
        end = (await retry_until_available(LOG_UNAVAILABLE, lambda: self._log.ends([_PARTITION]), role=self.name))[
            _PARTITION
        ]
        self.applied.advance({_PARTITION: 0})
        reader = await retry_until_available(LOG_UNAVAILABLE, lambda: self._log.open({_PARTITION: 0}), role=self.name)
        try:
            while not ready.is_set():
                if end == 0 or self.applied.has(_PARTITION, end - 1):
                    ready.set()
                else:
                    await self._apply_next(reader)
            while True:
                await self._apply_next(reader)
        finally:
            await reader.close()

    async def _apply_next(self, reader: Reader) -> None:
        records = await retry_until_available(LOG_UNAVAILABLE, reader.read, role=self.name)
        for record in records:
            self._apply(record)
        self.applied.advance({_PARTITION: records[-1].offset + 1})

    def _apply(self, record: Record) -> None:
        try:
            self._apply_fact(decode(record))
        except (DecodeError, ValueError) as error:
            logger.error("a record of the apps topic could not be applied", offset=record.offset, error=str(error))

    def _apply_fact(self, fact: AppFact) -> None:
        match fact.WhichOneof("fact"):
            case "app":
                known = self._apps.get(fact.app.appkey)
                self._apps[fact.app.appkey] = fact.app
                if fact.app.HasField("pause") != (known is not None and known.HasField("pause")):
                    self._change_pauses()
            case "installation_pause":
                pause = fact.installation_pause.pause
                self._installation_pause = pause if fact.installation_pause.HasField("pause") else None
                self._change_pauses()
            case "revocations":
                record = fact.revocations
                self._revoked[record.appkey, record.partition] = RevokedKeys.of(record)
                for listener in self._listeners:
                    listener(record.appkey)
            case "broadcasts":
                self._broadcasts[fact.broadcasts.appkey] = fact.broadcasts
            case "changed" | None:
                pass
            case unexpected:
                assert_never(unexpected)

    def _change_pauses(self) -> None:
        self._pauses_changed.set()
        self._pauses_changed = asyncio.Event()
