"""An installation elsewhere: its console is called with an API token."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import click
import msgspec

from edge.console.api.answers.apps import App, AppList, NewSecret, PauseChanged
from edge.console.api.answers.audits import AppTimeline, DeviceAudit, PushAudit
from edge.console.api.requests import ApnsKeyBody, IdentityBody, ReasonBody, RotationBody, SettingsBody
from edge.console.view.app_form import ENVIRONMENT_NAMES
from protos.registry.v1.registry_pb2 import ApnsKeyChange, IdentityChange, UpdateAppRequest
from services.domain.identity import MODE_NAMES

if TYPE_CHECKING:
    from carillon.commands.installation.console import ConsoleClient

_PAGE = 500


class RemoteInstallation:
    """The installation behind a console: calls `/console/v1` with an API token, whose permissions apply."""

    def __init__(self, console: "ConsoleClient") -> None:
        self._console = console

    def apps(self) -> Sequence[App]:
        return self._console.get(AppList, "apps").apps

    def app(self, appkey: str) -> App:
        return self._console.get(App, "apps", appkey)

    def change_app(self, change: UpdateAppRequest) -> App:
        body = msgspec.json.encode(settings_body(change))
        return self._console.post(App, "apps", change.appkey, "settings", body=body)

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


def settings_body(change: UpdateAppRequest) -> SettingsBody:
    """Return the body of the call that makes a change."""
    if change.HasField("quotas"):
        raise click.UsageError("quotas are set on the machine alone, without --url and tokens")
    return SettingsBody(
        name=change.name if change.HasField("name") else None,
        ack_info=change.ack_info_enabled if change.HasField("ack_info_enabled") else None,
        default_period_s=change.default_period_s if change.HasField("default_period_s") else None,
        allow_from=list(change.allow_from.networks) if change.HasField("allow_from") else None,
        replay_safe_required=change.replay_safe_required if change.HasField("replay_safe_required") else None,
        apns=_key_body(change.apns) if change.HasField("apns") else None,
        identity=_identity_body(change.identity) if change.HasField("identity") else None,
        drop_old_secret=change.drop_old_secret,
    )


def _key_body(change: ApnsKeyChange) -> ApnsKeyBody:
    given = {name: getattr(change, name) for name in ("pem", "key_id", "team_id", "topic") if change.HasField(name)}
    environment = ENVIRONMENT_NAMES[change.environment] if change.HasField("environment") else None
    return ApnsKeyBody(**given, environment=environment, remove=change.remove)


def _identity_body(change: IdentityChange) -> IdentityBody:
    return IdentityBody(
        mode=MODE_NAMES[change.mode] if change.HasField("mode") else None,
        keys=list(change.keys.pems) if change.HasField("keys") else None,
        tags=list(change.tags.tags) if change.HasField("tags") else None,
    )


def _one_app(appkey: str) -> str:
    if not appkey:
        raise click.UsageError("all apps at once are paused and resumed on the machine alone, without --url and tokens")
    return appkey


def _reason(reason: str) -> bytes:
    return msgspec.json.encode(ReasonBody(reason))


def _text(value: bool) -> str:
    return "true" if value else "false"
