"""Webhooks: the public names of kinds of events, secrets, and signatures as standardwebhooks.com says."""

import base64
import hmac
import secrets
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from protos.registry.v1.apps_pb2 import EventKind, Webhook
from services.domain.master_key import Keys
from services.domain.push_endpoints import parse_endpoint
from services.errors import InputError

SECRET_PREFIX = "whsec_"  # noqa: S105 - no secret
_SECRET_BYTES = 32

KIND_NAMES: Mapping["EventKind.ValueType", str] = MappingProxyType(
    {
        EventKind.EVENT_KIND_PUSH_ACCEPTED: "push.accepted",
        EventKind.EVENT_KIND_PUSH_STARTED: "push.started",
        EventKind.EVENT_KIND_PUSH_FINISHED: "push.finished",
        EventKind.EVENT_KIND_PUSH_CANCELLED: "push.cancelled",
        EventKind.EVENT_KIND_PUSH_FAILED: "push.failed",
        EventKind.EVENT_KIND_MESSAGE_SENT: "message.sent",
        EventKind.EVENT_KIND_MESSAGE_RECEIVED: "message.received",
        EventKind.EVENT_KIND_MESSAGE_SHOWN: "message.shown",
        EventKind.EVENT_KIND_MESSAGE_CLICKED: "message.clicked",
        EventKind.EVENT_KIND_MESSAGE_DISMISSED: "message.dismissed",
        EventKind.EVENT_KIND_MESSAGE_FAILED: "message.failed",
        EventKind.EVENT_KIND_MESSAGE_EXPIRED: "message.expired",
        EventKind.EVENT_KIND_MESSAGE_CANCELLED: "message.cancelled",
        EventKind.EVENT_KIND_MESSAGE_DROPPED: "message.dropped",
        EventKind.EVENT_KIND_MESSAGE_HANDED_OVER: "message.handed_over",
        EventKind.EVENT_KIND_DEVICE_REGISTERED: "device.registered",
        EventKind.EVENT_KIND_DEVICE_REMOVED: "device.removed",
        EventKind.EVENT_KIND_ALIAS_EVICTED: "alias.evicted",
        EventKind.EVENT_KIND_ADDRESS_DEAD: "address.dead",
        EventKind.EVENT_KIND_DRAFT_WAITS: "draft.waits",
        EventKind.EVENT_KIND_DRAFT_DECIDED: "draft.decided",
        EventKind.EVENT_KIND_DRAFT_EXPIRED: "draft.expired",
        EventKind.EVENT_KIND_QUOTA_REACHED: "quota.reached",
        EventKind.EVENT_KIND_APP_PAUSED: "app.paused",
        EventKind.EVENT_KIND_APP_RESUMED: "app.resumed",
    }
)
"""The public names of the kinds of events. A name is never given another meaning."""

KINDS: Mapping[str, "EventKind.ValueType"] = MappingProxyType({name: kind for kind, name in KIND_NAMES.items()})


_TEAM = "team/"


def scope_of(appkey: str, team_id: str) -> str:
    """Return the scope of a webhook: the appkey of its app, or team/ID of its team.

    InputError: the request names neither, or both, or a team in place of an app.
    """
    if bool(appkey) == bool(team_id) or team_of_scope(appkey):
        raise InputError("name either an app or a team")
    return appkey or team_scope(team_id)


def team_scope(team_id: str) -> str:
    """Return the scope of the webhooks of a team."""
    return f"{_TEAM}{team_id}"


def team_of_scope(scope: str) -> str:
    """Return the id of the team whose webhooks have this scope; "" for the scope of an app."""
    return scope.removeprefix(_TEAM) if scope.startswith(_TEAM) else ""


def scope_text(scope: str) -> str:
    """Return the scope for people, such as `app 1234567890`."""
    team_id = team_of_scope(scope)
    return f"team {team_id}" if team_id else f"app {scope}"


def new_secret() -> str:
    """Return a new secret as receivers take it: 256 random bits in base64 behind `whsec_`."""
    return SECRET_PREFIX + base64.b64encode(secrets.token_bytes(_SECRET_BYTES)).decode()


def seal_secret(secret: str, scope: str, webhook_id: str, keys: Keys) -> bytes:
    """Return the secret sealed for this webhook of this app or team alone."""
    return keys.seal(secret, _context(scope, webhook_id))


def secrets_in_force(webhook: Webhook, scope: str, keys: Keys, now_ms: int) -> list[str]:
    """Return the secrets that sign a webhook's requests now, the newest first.

    CarillonError: they were sealed with another master key.
    """
    sealed = [webhook.sealed_secret]
    if webhook.old_sealed_secret and now_ms < webhook.old_secret_until_ms:
        sealed.append(webhook.old_sealed_secret)
    return [keys.open(each, _context(scope, webhook.webhook_id)) for each in sealed]


def seal_secrets_anew(webhook: Webhook, scope: str, keys: Keys) -> None:
    """Seal the secrets of a webhook with the key in force, in place, where they are sealed with a former one."""
    context = _context(scope, webhook.webhook_id)
    webhook.sealed_secret = keys.sealed_anew(webhook.sealed_secret, context) or webhook.sealed_secret
    if webhook.old_sealed_secret:
        webhook.old_sealed_secret = keys.sealed_anew(webhook.old_sealed_secret, context) or webhook.old_sealed_secret


def signature(secrets: Sequence[str], message_id: str, timestamp_s: int, body: bytes) -> str:
    """Return the header `webhook-signature`: one signature for each secret, so that either verifies the request."""
    signed = b"%b.%d.%b" % (message_id.encode(), timestamp_s, body)
    keys = (base64.b64decode(secret.removeprefix(SECRET_PREFIX)) for secret in secrets)
    return " ".join(f"v1,{base64.b64encode(hmac.digest(key, signed, 'sha256')).decode()}" for key in keys)


def shown_url(url: str) -> str:
    """Return the part of a webhook's URL that is no secret of its receiver: scheme, host and port."""
    return parse_endpoint(url).origin


def _context(scope: str, webhook_id: str) -> str:
    """Encryption context that differs from those of the app's other secrets, so that they cannot be swapped."""
    return f"{scope}/webhook/{webhook_id}"
