"""Changes of the webhooks of an app or a team, in place, and their description for the audit, without secrets."""

from collections.abc import Sequence
from typing import NamedTuple

from protos.registry.v1.apps_pb2 import (
    WEBHOOK_FORM_STANDARD,
    WEBHOOK_FORM_UNSPECIFIED,
    App,
    EventKind,
    TeamWebhooks,
    Webhook,
    WebhookForm,
)
from protos.registry.v1.registry_pb2 import ChangeWebhookRequest
from services.domain.master_key import Keys
from services.domain.push_endpoints import AllowedHosts, EndpointRefusedError, parse_endpoint
from services.domain.secret_texts import new_id
from services.domain.text import checked_text
from services.domain.webhooks import KIND_NAMES, new_secret, scope_of, scope_text, seal_secret, shown_url
from services.errors import Code, InputError, NotFoundError

MAX_WEBHOOKS = 10
MAX_LABELS = 20
MAX_PUSHES = 100
MAX_KEEP_OLD_S = 90 * 86_400


class WebhookChange(NamedTuple):
    """A webhook after its change, None if it was removed; what was done, in lines for the audit; and its new secret."""

    webhook: Webhook | None
    action: str
    settings: Sequence[str]
    secret: str = ""


def change_webhook(
    owner: App | TeamWebhooks, request: ChangeWebhookRequest, keys: Keys, hosts: AllowedHosts, now_ms: int
) -> WebhookChange:
    """Apply the request to the webhooks of the app or the team in place. Fields that it does not name stay.

    InputError: a field is wrong, or the URL may not be called. NotFoundError: there is no such webhook.
    """
    if request.remove:
        return _remove(owner, request)
    is_new = not request.webhook_id
    webhook = _new(owner, request, now_ms) if is_new else _find(owner, request)
    before = Webhook()
    before.CopyFrom(webhook)
    _set_fields(webhook, request, hosts)
    action, secret = "webhook set", ""
    if request.resume:
        webhook.resumed_ms, action = now_ms, "webhook resumed"
    if is_new:
        action, secret = "webhook made", new_secret()
    elif request.HasField("rotate_keep_old_s"):
        action, secret = "webhook secret rotated", new_secret()
        _keep_old_secret(webhook, request.rotate_keep_old_s, now_ms)
    if secret:
        scope = scope_of(request.appkey, request.team_id)
        webhook.sealed_secret = seal_secret(secret, scope, webhook.webhook_id, keys)
    if is_new:
        owner.webhooks.append(webhook)
        before = Webhook()
    return WebhookChange(webhook, action, _described(before, webhook), secret)


def _remove(owner: App | TeamWebhooks, request: ChangeWebhookRequest) -> WebhookChange:
    bare = ChangeWebhookRequest(
        appkey=request.appkey, team_id=request.team_id, webhook_id=request.webhook_id, remove=True
    )
    if request.HasField("origin"):
        bare.origin.CopyFrom(request.origin)
    if request != bare:
        raise InputError("a webhook is removed whole: name no other field of it")
    webhook = _find(owner, request)
    settings = [f"webhook {webhook.webhook_id}", f"host {shown_url(webhook.url)}"]
    owner.webhooks.remove(webhook)
    return WebhookChange(None, "webhook removed", settings)


def _new(owner: App | TeamWebhooks, request: ChangeWebhookRequest, now_ms: int) -> Webhook:
    if len(owner.webhooks) >= MAX_WEBHOOKS:
        raise InputError(Code.TOO_MANY_WEBHOOKS, most=MAX_WEBHOOKS)
    if not request.HasField("url"):
        raise InputError("a new webhook needs a url")
    if request.resume or request.HasField("rotate_keep_old_s"):
        raise InputError("a new webhook is neither resumed nor has it a former secret")
    return Webhook(webhook_id=new_id(), form=WEBHOOK_FORM_STANDARD, created_ms=now_ms)


def _find(owner: App | TeamWebhooks, request: ChangeWebhookRequest) -> Webhook:
    for webhook in owner.webhooks:
        if webhook.webhook_id == request.webhook_id:
            return webhook
    scope = scope_text(scope_of(request.appkey, request.team_id))
    raise NotFoundError(Code.NO_SUCH_WEBHOOK, scope=scope, webhook_id=request.webhook_id)


def _set_fields(webhook: Webhook, request: ChangeWebhookRequest, hosts: AllowedHosts) -> None:
    if request.HasField("url"):
        try:
            hosts.check(parse_endpoint(request.url))
        except EndpointRefusedError as error:
            raise InputError(Code.WRONG_RECEIVER, problem=str(error)) from None
        webhook.url = request.url
    if request.HasField("form"):
        if request.form == WEBHOOK_FORM_UNSPECIFIED or request.form not in WebhookForm.values():
            raise InputError("form must be standard, slack, dingtalk, feishu or wecom")
        webhook.form = request.form
    if request.HasField("kinds"):
        webhook.kinds[:] = sorted(set(request.kinds.kinds))
        if not KIND_NAMES.keys() >= set(webhook.kinds):
            raise InputError(f"kinds must be among {', '.join(KIND_NAMES.values())}")
    if request.HasField("pushes"):
        if len(request.pushes.msgids) > MAX_PUSHES:
            raise InputError(f"pushes must name at most {MAX_PUSHES} message ids")
        webhook.msgids[:] = sorted(set(request.pushes.msgids))
    if request.HasField("labels"):
        if len(request.labels.labels) > MAX_LABELS:
            raise InputError(f"labels must name at most {MAX_LABELS} labels")
        webhook.labels[:] = sorted({checked_text("labels", label) for label in request.labels.labels})
    if request.HasField("disabled"):
        webhook.disabled = request.disabled
    if webhook.form != WEBHOOK_FORM_STANDARD and not webhook.kinds:
        raise InputError(Code.CHAT_WITHOUT_KINDS)


def _keep_old_secret(webhook: Webhook, keep_old_s: int, now_ms: int) -> None:
    """Let the present secret sign for `keep_old_s` more seconds beside the next one; an older one ends in any case."""
    if keep_old_s > MAX_KEEP_OLD_S:
        raise InputError(f"the old secret can be kept for {MAX_KEEP_OLD_S // 86_400} days at most")
    webhook.old_sealed_secret = webhook.sealed_secret if keep_old_s else b""
    webhook.old_secret_until_ms = now_ms + keep_old_s * 1000 if keep_old_s else 0


def _described(before: Webhook, after: Webhook) -> list[str]:
    """Return the webhook's id, and a line for each changed setting; of the URL, which may be a secret, its host."""
    old, new = _settings(before), _settings(after)
    changed = [f"{name} {value}" for name, value in new.items() if value != old.get(name)]
    if before.url != after.url and f"host {new['host']}" not in changed:
        changed.append("another url of this host")
    return [f"webhook {after.webhook_id}", *changed]


def _settings(webhook: Webhook) -> dict[str, str]:
    if not webhook.url:
        return {}
    return {
        "host": shown_url(webhook.url),
        "form": WebhookForm.Name(webhook.form).removeprefix("WEBHOOK_FORM_").lower(),
        "kinds": ",".join(kind_name(kind) for kind in webhook.kinds) or "all",
        "pushes": ",".join(map(str, webhook.msgids)) or "all",
        "labels": ",".join(webhook.labels) or "all",
        "webhook_state": "off" if webhook.disabled else "on",
    }


def kind_name(kind: "EventKind.ValueType") -> str:
    """Return the public name of a kind; its number for one of a later release."""
    return KIND_NAMES.get(kind, str(kind))
