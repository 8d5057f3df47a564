"""An installation elsewhere: its console is called with an API token."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import click
import msgspec

from edge.console.api.answers.apps import App, AppList, NewSecret, PauseChanged
from edge.console.api.answers.audits import AppTimeline, DeviceAudit, PushAudit
from edge.console.api.questions import ReasonBody, RotationBody

if TYPE_CHECKING:
    from carillon.commands.installation.console import ConsoleClient

_PAGE = 500


class RemoteInstallation:
    """Asks `/console/v1`, with what the token may see."""

    def __init__(self, console: "ConsoleClient") -> None:
        self._console = console

    def apps(self) -> Sequence[App]:
        return self._console.get(AppList, "apps").apps

    def app(self, appkey: str) -> App:
        return self._console.get(App, "apps", appkey)

    def rotate_secret(self, appkey: str, keep_old_s: int) -> NewSecret:
        body = msgspec.json.encode(RotationBody(keep_old_s))
        return self._console.post(NewSecret, "apps", appkey, "secret", body=body)

    def pause(self, appkey: str, reason: str) -> PauseChanged:
        return self._console.post(PauseChanged, "apps", _one_app(appkey), "pause", body=_reason(reason))

    def resume(self, appkey: str, reason: str) -> PauseChanged:
        return self._console.post(PauseChanged, "apps", _one_app(appkey), "resume", body=_reason(reason))

    def audit_push(self, msgid: int, token: str, *, allow_behind: bool) -> PushAudit:
        behind = _text(allow_behind)
        return self._console.get(PushAudit, "pushes", str(msgid), token=token or None, allow_behind=behind)

    def audit_device(self, appkey: str, token: str, *, allow_behind: bool) -> DeviceAudit:
        path = ("apps", appkey, "device-history")
        return self._console.get(DeviceAudit, *path, token=token, allow_behind=_text(allow_behind))

    def audit_app(self, appkey: str, from_ms: int, to_ms: int, *, allow_behind: bool) -> Iterator[AppTimeline]:
        path, given = ("apps", appkey, "timeline"), {"from_ms": from_ms, "to_ms": to_ms, "limit": _PAGE}
        cursor = ""
        while True:
            page = self._console.get(AppTimeline, *path, **given, cursor=cursor, allow_behind=_text(allow_behind))
            yield page
            if not (cursor := page.next):
                return


def _one_app(appkey: str) -> str:
    if not appkey:
        raise click.UsageError("all apps at once are paused and resumed on the machine alone, without --url and tokens")
    return appkey


def _reason(reason: str) -> bytes:
    return msgspec.json.encode(ReasonBody(reason))


def _text(value: bool) -> str:
    return "true" if value else "false"
