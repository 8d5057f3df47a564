"""An installation elsewhere: its console is called with an API token."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeVar
from urllib.parse import quote

import click
import httpx
import msgspec

from carillon.installation.options import console_and_token
from console.apps.answers import App, AppList, NewSecret, PauseChanged
from console.apps.form import ENVIRONMENT_NAMES
from console.audit.answers import AppTimeline, DeviceAudit, PushAudit
from console.shell.requests import ApnsKeyBody, IdentityBody, ReasonBody, RotationBody, SettingsBody
from protos.registry.v1.registry_pb2 import ApnsKeyChange, IdentityChange, UpdateAppRequest
from services.domain.addresses import ROUTE_NAMES, channel_name
from services.domain.identity import MODE_NAMES

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
        channels=_channels(change) if change.channels else None,
        web_origins=list(change.web_origins.origins) if change.HasField("web_origins") else None,
        channel_route=ROUTE_NAMES[change.channel_route] if change.HasField("channel_route") else None,
        apns_reports=change.apns_reports if change.HasField("apns_reports") else None,
        identity=_identity_body(change.identity) if change.HasField("identity") else None,
        drop_old_secret=change.drop_old_secret,
    )


def _key_body(change: ApnsKeyChange) -> ApnsKeyBody:
    given = {name: getattr(change, name) for name in ("pem", "key_id", "team_id", "topic") if change.HasField(name)}
    environment = ENVIRONMENT_NAMES[change.environment] if change.HasField("environment") else None
    return ApnsKeyBody(**given, environment=environment, remove=change.remove)


def _channels(change: UpdateAppRequest) -> dict[str, dict[str, str] | None]:
    return {channel_name(each.channel): None if each.remove else dict(each.fields) for each in change.channels}


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


# Commands from elsewhere: calls of `/console/v1` with an API token of a team.

_TIMEOUT_S = 60

Answer = TypeVar("Answer", bound=msgspec.Struct)


class ConsoleClient:
    """Makes calls of `/console/v1`. click.ClickException says why one failed; it never contains the token."""

    def __init__(self, url: str, token: str) -> None:
        self._url = f"{url}/console/v1"
        self._headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}

    def get(self, kind: type[Answer], /, *path: str, **query: str | int | None) -> Answer:
        return self._call(kind, "GET", path, query, None, {})

    def post(
        self, kind: type[Answer], /, *path: str, body: bytes = b"{}", key: str = "", **query: str | int | None
    ) -> Answer:
        return self._call(kind, "POST", path, query, body, {"Idempotency-Key": key} if key else {})

    def delete(self, kind: type[Answer], /, *path: str, **query: str | int | None) -> Answer:
        return self._call(kind, "DELETE", path, query, None, {})

    def _call(
        self,
        kind: type[Answer],
        method: str,
        path: tuple[str, ...],
        query: Mapping[str, str | int | None],
        body: bytes | None,
        headers: Mapping[str, str],
    ) -> Answer:
        url = "/".join([self._url, *(quote(part, safe="") for part in path)])
        given = {name: value for name, value in query.items() if value is not None}
        try:
            response = httpx.request(
                method, url, params=given, content=body, headers={**self._headers, **headers}, timeout=_TIMEOUT_S
            )
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise click.ClickException(f"no answer from {self._url}: {error}") from None
        if response.status_code != 200:
            raise click.ClickException(_problem(response))
        try:
            return msgspec.json.decode(response.content, type=kind)
        except msgspec.DecodeError:
            raise click.ClickException(f"{self._url} is no console of this version of Carillon") from None


def console_client() -> ConsoleClient:
    """Return the client that the options or the environment name. click.UsageError: something is missing."""
    return ConsoleClient(*console_and_token())


def _problem(response: httpx.Response) -> str:
    try:
        found: Any = response.json()
    except ValueError:
        found = None
    if not isinstance(found, dict) or not isinstance(found.get("detail"), str):
        return f"{response.url.host} answered HTTP {response.status_code}, which is no answer of a console"
    return str(found["detail"])
