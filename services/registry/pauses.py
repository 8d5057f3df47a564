"""Pauses and resumes one app or all apps at once; each change is a fact in `apps` and a record for the audit."""

from collections.abc import Awaitable, Callable, Mapping, Sequence

from protos.registry.v1.apps_pb2 import App, AppChanged, AppFact, InstallationPause, Pause
from protos.registry.v1.registry_pb2 import (
    PauseAppsRequest,
    PauseAppsResponse,
    ResumeAppsRequest,
    ResumeAppsResponse,
)
from protos.runtime.v1.log_pb2 import Origin, Position
from services.domain.apps import APPS_PARTITION, INSTALLATION_PAUSE_KEY, AppDirectory
from services.domain.role import RoleContext
from services.errors import Code, InputError, NotFoundError
from services.process.metrics import APPS_PAUSED

_MAX_REASON_LENGTH = 200
_ROLES_THAT_SEND = ("delivery", "scheduling")

WriteChange = Callable[[AppChanged, Mapping[bytes, AppFact], Origin], Awaitable[None]]
"""Appends a change for the audit and the facts by their keys; returns once this process has applied them."""


class Pauses:
    """The pauses of single apps and the pause of all apps. The caller makes one change at a time."""

    def __init__(self, context: RoleContext, write: WriteChange) -> None:
        self._context = context
        self._apps = context.apps
        self._write = write

    async def pause(self, request: PauseAppsRequest) -> PauseAppsResponse:
        """Pause what the request names. A pause that holds already stays as it is, with its time and reason."""
        present = self._pause_of(request)
        if present is None:
            now_ms = self._context.clock.now_ms()
            origin = request.origin if request.HasField("origin") else None
            await self._set(request, Pause(since_ms=now_ms, reason=_checked_reason(request.reason), origin=origin))
        return PauseAppsResponse(pause=self._pause_of(request), already_paused=present is not None)

    async def resume(self, request: ResumeAppsRequest) -> ResumeAppsResponse:
        """End the pause of what the request names; nothing changes if there is none."""
        ended = self._pause_of(request)
        _checked_reason(request.reason)
        if ended is not None:
            await self._set(request, None)
        return ResumeAppsResponse(ended=ended)

    async def unconfirmed(self) -> Sequence[str]:
        """Return the sending roles that do not apply all present records of `apps` within a few seconds."""
        end = (await self._context.log.ends([APPS_PARTITION]))[APPS_PARTITION]
        position = Position(topic=APPS_PARTITION.topic, partition=APPS_PARTITION.number, offset=end - 1)
        return await self._context.peers.roles_behind(_ROLES_THAT_SEND, position)

    def _pause_of(self, request: PauseAppsRequest | ResumeAppsRequest) -> Pause | None:
        if request.all_apps:
            if request.appkey:
                raise InputError("name one app or all apps, not both")
            return self._apps.installation_pause
        app = self._app(request.appkey)
        return app.pause if app.HasField("pause") else None

    async def _set(self, request: PauseAppsRequest | ResumeAppsRequest, pause: Pause | None) -> None:
        if request.all_apps:
            key, fact = INSTALLATION_PAUSE_KEY, AppFact(installation_pause=InstallationPause(pause=pause))
        else:
            app = App()
            app.CopyFrom(self._app(request.appkey))
            app.ClearField("pause")
            app.MergeFrom(App(pause=pause))
            key, fact = app.appkey.encode(), AppFact(app=app)
        changed = AppChanged(
            appkey=request.appkey,
            action="resumed" if pause is None else "paused",
            settings=[request.reason] if request.reason else [],
        )
        await self._write(changed, {key: fact}, request.origin)

    def _app(self, appkey: str) -> App:
        app = self._apps.get(appkey)
        if app is None:
            raise NotFoundError(Code.NO_SUCH_APP, appkey=appkey)
        return app


def export_paused_apps(apps: AppDirectory) -> None:
    """Make the metric of paused apps read its value from the directory at each scrape."""
    APPS_PAUSED.set_function(lambda: sum(apps.is_paused(app.appkey) for app in apps.all()))


def _checked_reason(reason: str) -> str:
    if len(reason) > _MAX_REASON_LENGTH or not (reason.isprintable() or not reason):
        raise InputError(Code.TOO_LONG_OR_NOT_PRINTABLE, at="reason", most=_MAX_REASON_LENGTH)
    return reason
