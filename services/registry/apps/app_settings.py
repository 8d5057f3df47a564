"""Changes of an app's settings, in place. InputError names the wrong setting; the caller then drops the copy."""

import re

from protos.registry.v1.apps_pb2 import (
    IDENTITY_MODE_ACCEPT,
    IDENTITY_MODE_OFF,
    IDENTITY_MODE_REQUIRE,
    App,
    Identity,
)
from protos.registry.v1.registry_pb2 import IdentityChange, QuotasChange, RotateSecretRequest, UpdateAppRequest
from services.domain.identity import checked_keys, checked_tags, identity_mode
from services.domain.limits.time_to_live import MAX_PERIOD_S, MIN_PERIOD_S
from services.domain.master_key import Keys, sealed_digest
from services.domain.text import checked_text
from services.registry.apps.apns_keys import change_apns
from services.runtime.errors import ConflictError, InputError
from services.runtime.http.client_address import Networks

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
        raise ConflictError("another secret key was made meanwhile; look at the app before you make one more")
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
        raise InputError(
            "package must have 1 to 128 letters, digits, dots, dashes or underscores, like com.example.app"
        )
    return package


def checked_period(period_s: int) -> int:
    if not MIN_PERIOD_S <= period_s <= MAX_PERIOD_S:
        raise InputError(f"default_period_s must be from {MIN_PERIOD_S} to {MAX_PERIOD_S} seconds")
    return period_s


def _change_quotas(app: App, change: QuotasChange) -> None:
    if change.default_registrations:
        app.quotas.ClearField("registrations_per_minute")
    for field, value in change.ListFields():
        if field.name == "default_registrations":
            continue
        most = _MAX_QUOTA_BYTES if field.name == "stored_task_bytes" else _MAX_QUOTA
        if value > most:
            raise InputError(f"{field.name} must be at most {most}; 0 removes the quota")
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
        raise InputError(
            "identity accept and require need a public key of the app's server (identity_keys), by which proofs are"
            " verified; to remove the keys set identity off too"
        )
    if identity_mode(app) == IDENTITY_MODE_OFF:
        identity.ClearField("mode")
    if identity == Identity():
        app.ClearField("identity")


def _checked_networks(networks: list[str]) -> list[str]:
    if len(networks) > MAX_NETWORKS:
        raise InputError(f"allow_from must name at most {MAX_NETWORKS} networks")
    try:
        return Networks.parse(networks).texts()
    except ValueError as error:
        raise InputError(f"allow_from: {error}") from None
