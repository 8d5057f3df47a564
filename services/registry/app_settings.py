"""Changes of an app's settings and APNs key, in place, and their description without secrets."""

import re
from collections.abc import Sequence
from datetime import UTC, datetime

from protos.registry.v1.apps_pb2 import (
    APNS_ENVIRONMENT_PRODUCTION,
    IDENTITY_MODE_ACCEPT,
    IDENTITY_MODE_OFF,
    IDENTITY_MODE_REQUIRE,
    PLATFORM_ANDROID,
    PLATFORM_IOS,
    ApnsEnvironment,
    ApnsKey,
    App,
    Identity,
    Quotas,
    Route,
)
from protos.registry.v1.registry_pb2 import (
    ApnsKeyChange,
    IdentityChange,
    QuotasChange,
    RotateSecretRequest,
    UpdateAppRequest,
)
from services.domain.addresses import ROUTES, route_name
from services.domain.apns_credentials import ENVIRONMENTS, seal_key
from services.domain.channel_credentials.forms import change_credentials, replaced_secrets, settings_lines
from services.domain.identity import checked_keys, checked_tags, identity_mode, identity_mode_name, key_ids
from services.domain.limits import MAX_PERIOD_S, MIN_PERIOD_S
from services.domain.master_key import Keys, sealed_digest
from services.domain.text import checked_text
from services.errors import Code, ConflictError, InputError
from services.net.http.client_address import Networks

# Changes of an iOS app's APNs key. InputError names the wrong field and never contains the key.

_ID = re.compile(r"[A-Z0-9]{10}")
_TOPIC = re.compile(r"[A-Za-z0-9-]+(\.[A-Za-z0-9-]+)+")
_TOPIC_LENGTH = 128


def change_apns(app: App, change: ApnsKeyChange, keys: Keys) -> None:
    """Apply the change to the app in place. Fields that the change does not name stay."""
    if app.platform != PLATFORM_IOS:
        raise InputError(f"app {app.appkey} is no iOS app: only iOS apps have APNs keys")
    if change.remove:
        if change != ApnsKeyChange(remove=True):
            raise InputError("an APNs key is removed whole: name no other field of it")
        app.ClearField("apns")
        return
    _check_complete(app, change)
    apns = app.apns
    if change.HasField("key_id"):
        apns.key_id = _checked_id("key id", change.key_id)
    if change.HasField("team_id"):
        apns.team_id = _checked_id("team id", change.team_id)
    _set_topic_and_environment(app, apns, change)
    if change.HasField("pem"):
        apns.sealed_pem = seal_key(app, change.pem, keys)


def _check_complete(app: App, change: ApnsKeyChange) -> None:
    """Check that the first change of an app sets everything without a default."""
    set_fields = {
        "the key": change.HasField("pem"),
        "its key id": change.HasField("key_id"),
        "the team id": change.HasField("team_id"),
    }
    missing = [name for name, is_set in set_fields.items() if not is_set]
    if missing and not app.HasField("apns"):
        raise InputError(Code.NO_APNS_KEY, appkey=app.appkey, missing=", ".join(missing))


def _set_topic_and_environment(app: App, apns: ApnsKey, change: ApnsKeyChange) -> None:
    """Set the key's topic and environment at Apple."""
    if change.HasField("topic") or not apns.topic:
        apns.topic = _checked_topic(change.topic if change.HasField("topic") else app.package)
    if change.HasField("environment"):
        if change.environment not in ENVIRONMENTS:
            raise InputError("the APNs environment must be production, sandbox or both")
        apns.environment = change.environment
    elif not apns.environment:
        apns.environment = APNS_ENVIRONMENT_PRODUCTION


def _checked_id(name: str, given: str) -> str:
    if not _ID.fullmatch(given):
        raise InputError(Code.WRONG_APPLE_ID, at=f"the APNs {name}")
    return given


def _checked_topic(topic: str) -> str:
    if len(topic) > _TOPIC_LENGTH or not _TOPIC.fullmatch(topic):
        raise InputError(Code.WRONG_TOPIC, at="the APNs topic", most=_TOPIC_LENGTH)
    return topic


# Changes of an app's web pages.

MAX_ORIGINS = 32
_ORIGIN = re.compile(r"https://[a-z0-9.-]{1,253}(?::[0-9]{1,5})?|http://(?:localhost|127\.0\.0\.1)(?::[0-9]{1,5})?")


def checked_origins(given: Sequence[str]) -> list[str]:
    """Return the origins of web pages, each once. InputError names the wrong one."""
    if len(given) > MAX_ORIGINS:
        raise InputError(Code.TOO_MANY_ENTRIES, at="web_origins", most=MAX_ORIGINS)
    for origin in given:
        if not _ORIGIN.fullmatch(origin) or (origin.startswith("https") and origin.endswith(":443")):
            raise InputError(Code.WRONG_ORIGIN, at="web_origins", text=repr(origin))
    return list(dict.fromkeys(given))


DEFAULT_PERIOD_S = 86_400
MAX_NETWORKS = 256
MAX_KEEP_OLD_S = 90 * 86_400
_MAX_QUOTA = 2**31 - 1
_MAX_QUOTA_BYTES = 2**50
_PACKAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


def change_settings(app: App, request: UpdateAppRequest, keys: Keys) -> None:
    """Apply the request to the app in place. Settings that the request does not name stay."""
    if request.HasField("ack_info_enabled"):
        app.ack_info_enabled = request.ack_info_enabled
    if request.HasField("default_period_s"):
        app.default_period_s = checked_period(request.default_period_s)
    if request.HasField("name"):
        app.name = checked_text("name", request.name)
    if request.HasField("apns"):
        change_apns(app, request.apns, keys)
    for change in request.channels:
        change_credentials(app, change, keys)
    if request.HasField("web_origins"):
        app.web_origins[:] = checked_origins(list(request.web_origins.origins))
    if request.HasField("channel_route"):
        _change_route(app, request.channel_route)
    if request.HasField("apns_reports"):
        if app.platform != PLATFORM_IOS:
            raise InputError(f"app {app.appkey} is no iOS app: other devices acknowledge and report in any case")
        app.apns_reports = request.apns_reports
    if request.HasField("quotas"):
        _change_quotas(app, request.quotas)
    if request.HasField("allow_from"):
        app.allow_from[:] = _checked_networks(list(request.allow_from.networks))
    if request.HasField("identity"):
        _change_identity(app, request.identity)
    if request.HasField("replay_safe_required"):
        app.replay_safe_required = request.replay_safe_required
    if request.drop_old_secret:
        drop_old_secret(app)


def rotate_secret(app: App, sealed_secret: bytes, request: RotateSecretRequest, now_ms: int) -> None:
    """Replace the secret. The former one stays valid for `keep_old_s`; an older one ends in any case.

    ConflictError: the request replaces another secret than the present one.
    """
    if request.HasField("replaces_digest") and request.replaces_digest != sealed_digest(app.sealed_secret):
        raise ConflictError(Code.SECRET_CHANGED)
    keep_old_s = request.keep_old_s
    if keep_old_s > MAX_KEEP_OLD_S:
        raise InputError(f"the old secret can be kept for {MAX_KEEP_OLD_S // 86_400} days at most")
    drop_old_secret(app)
    if keep_old_s:
        app.old_sealed_secret = app.sealed_secret
        app.old_secret_until_ms = now_ms + keep_old_s * 1000
    app.sealed_secret = sealed_secret


def drop_old_secret(app: App) -> None:
    app.ClearField("old_sealed_secret")
    app.ClearField("old_secret_until_ms")


def checked_package(package: str) -> str:
    if not _PACKAGE.fullmatch(package):
        raise InputError(Code.WRONG_PACKAGE, at="package", most=128)
    return package


def checked_period(period_s: int) -> int:
    if not MIN_PERIOD_S <= period_s <= MAX_PERIOD_S:
        raise InputError(Code.TIME_OUT_OF_RANGE, at="default_period_s", least_s=MIN_PERIOD_S, most_s=MAX_PERIOD_S)
    return period_s


def _change_route(app: App, route: "Route.ValueType") -> None:
    if app.platform != PLATFORM_ANDROID:
        raise InputError(f"app {app.appkey} is an iOS app: Apple alone reaches its devices, so it has no route")
    if route not in ROUTES.values():
        raise InputError("channel_route must be auto, own or vendor")
    app.channel_route = route


def _change_quotas(app: App, change: QuotasChange) -> None:
    if change.default_registrations:
        app.quotas.ClearField("registrations_per_minute")
    for field, value in change.ListFields():
        if field.name == "default_registrations":
            continue
        most = _MAX_QUOTA_BYTES if field.name == "stored_task_bytes" else _MAX_QUOTA
        if value > most:
            raise InputError(Code.QUOTA_TOO_LARGE, at=field.name, most=most)
        setattr(app.quotas, field.name, value)
    if not app.quotas.ListFields():
        app.ClearField("quotas")


def _change_identity(app: App, change: IdentityChange) -> None:
    identity = app.identity
    if change.HasField("keys"):
        identity.keys[:] = checked_keys(change.keys.pems)
    if change.HasField("tags"):
        identity.tags[:] = checked_tags(change.tags.tags)
    if change.HasField("mode"):
        if change.mode not in (IDENTITY_MODE_OFF, IDENTITY_MODE_ACCEPT, IDENTITY_MODE_REQUIRE):
            raise InputError("identity must be off, accept or require")
        identity.mode = change.mode
    if not identity.keys and identity_mode(app) != IDENTITY_MODE_OFF:
        raise InputError(Code.IDENTITY_WITHOUT_KEY, at="identity")
    if identity_mode(app) == IDENTITY_MODE_OFF:
        identity.ClearField("mode")
    if identity == Identity():
        app.ClearField("identity")


def _checked_networks(networks: list[str]) -> list[str]:
    if len(networks) > MAX_NETWORKS:
        raise InputError(Code.TOO_MANY_NETWORKS, at="allow_from", most=MAX_NETWORKS)
    return Networks.parse(networks, "allow_from").texts()


# Descriptions of changes to an app's settings, without its secrets.


def settings_changed(before: App, after: App) -> list[str]:
    """Return a line for each changed setting, such as `default_period_s 3600`."""
    old, new = _settings(before), _settings(after)
    changed = {name: value for name, value in new.items() if value != old[name]}
    replaced = {path: "new" for path in replaced_secrets(before, after) if path not in changed}
    lines = [f"{name} {value}" for name, value in (changed | replaced).items()]
    return lines + _key_file_change(before, after)


def secret_kept(app: App) -> list[str]:
    """Return a line for the rotation of a secret whose former one stays valid for a while."""
    return [f"old_secret {_old_secret(app)}"] if app.old_sealed_secret else []


def _old_secret(app: App) -> str:
    if not app.old_sealed_secret:
        return "none"
    until = datetime.fromtimestamp(app.old_secret_until_ms / 1000, UTC)
    return f"valid until {until.isoformat(sep=' ', timespec='seconds')}"


def _settings(app: App) -> dict[str, str]:
    apns = app.apns
    environment = ApnsEnvironment.Name(apns.environment).removeprefix("APNS_ENVIRONMENT_").lower()
    return {
        "name": app.name,
        "ack_info": "on" if app.ack_info_enabled else "off",
        "default_period_s": str(app.default_period_s),
        "apns_key": f"{apns.key_id} of {apns.team_id}" if app.HasField("apns") else "none",
        "apns_topic": apns.topic or "none",
        "apns_environment": environment if app.HasField("apns") else "none",
        "apns_reports": "on" if app.apns_reports else "off",
        **settings_lines(app),
        "web_origins": ",".join(app.web_origins) or "none",
        "channel_route": route_name(app),
        "allow_from": ",".join(app.allow_from) or "everywhere",
        "identity": identity_mode_name(app),
        "identity_keys": ",".join(key_ids(app)) or "none",
        "identity_tags": ",".join(app.identity.tags) or "none",
        "replay_safe": "required" if app.replay_safe_required else "optional",
        "old_secret": _old_secret(app),
        **{name: str(getattr(app.quotas, name) or "off") for name in Quotas.DESCRIPTOR.fields_by_name},
        **({} if app.quotas.HasField("registrations_per_minute") else {"registrations_per_minute": "default"}),
    }


def _key_file_change(before: App, after: App) -> list[str]:
    is_new = after.HasField("apns") and after.apns.sealed_pem != before.apns.sealed_pem
    return ["a new APNs key file"] if is_new else []
