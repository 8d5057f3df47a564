"""Calls about webhooks."""

from console.shell.access import Requester
from console.shell.backend import Backend, app_of
from console.shell.requests import (
    AppParams,
    ResendBody,
    RotationBody,
    WebhookBody,
    WebhookChangeBody,
    WebhookParams,
)
from console.webhooks import actions
from console.webhooks.answers import (
    FORMS,
    AttemptList,
    ChangedWebhook,
    ResendBegun,
    TestSent,
    WebhookList,
    attempt_answer,
    webhook_answer,
)
from protos.registry.v1.registry_pb2 import ChangeWebhookRequest, WebhookKinds, WebhookPushes
from services.domain.webhooks import KINDS


async def list_webhooks(backend: Backend, requester: Requester, params: AppParams) -> WebhookList:
    """List an app's webhooks, and how their receivers do."""
    await backend.apps.refresh()
    found = app_of(backend, params.appkey)
    states = await actions.states(backend, found.appkey)
    return WebhookList([webhook_answer(each, states.get(each.webhook_id)) for each in found.webhooks])


async def add_webhook(backend: Backend, requester: Requester, params: AppParams, body: WebhookBody) -> ChangedWebhook:
    """Make a webhook. The answer has its secret, which is not shown again."""
    request = ChangeWebhookRequest(appkey=app_of(backend, params.appkey).appkey, url=body.url)
    return await _change(backend, requester, request, body)


async def set_webhook(
    backend: Backend, requester: Requester, params: WebhookParams, body: WebhookChangeBody
) -> ChangedWebhook:
    """Change a webhook; what is absent or null stays."""
    request = ChangeWebhookRequest(
        appkey=app_of(backend, params.appkey).appkey,
        webhook_id=params.webhook_id,
        url=body.url,
        disabled=body.disabled,
    )
    return await _change(backend, requester, request, body)


async def rotate_webhook_secret(
    backend: Backend, requester: Requester, params: WebhookParams, body: RotationBody
) -> ChangedWebhook:
    """Give a webhook another secret. Its requests are signed with both for `keep_old_s`."""
    request = ChangeWebhookRequest(
        appkey=app_of(backend, params.appkey).appkey,
        webhook_id=params.webhook_id,
        rotate_keep_old_s=body.keep_old_s,
    )
    return await _change(backend, requester, request)


async def resume_webhook(backend: Backend, requester: Requester, params: WebhookParams) -> ChangedWebhook:
    """Go on with a webhook that was paused because its receiver had failed for three days. It has missed nothing."""
    appkey = app_of(backend, params.appkey).appkey
    request = ChangeWebhookRequest(appkey=appkey, webhook_id=params.webhook_id, resume=True)
    return await _change(backend, requester, request)


async def remove_webhook(backend: Backend, requester: Requester, params: WebhookParams) -> ChangedWebhook:
    """Remove a webhook; events that wait for it are not sent any more."""
    appkey = app_of(backend, params.appkey).appkey
    request = ChangeWebhookRequest(appkey=appkey, webhook_id=params.webhook_id, remove=True)
    return await _change(backend, requester, request)


async def list_attempts(backend: Backend, requester: Requester, params: WebhookParams) -> AttemptList:
    """List the latest 200 requests to the receiver of a webhook, the newest first."""
    appkey = app_of(backend, params.appkey).appkey
    found = await actions.attempts(backend, appkey, params.webhook_id)
    return AttemptList([attempt_answer(attempt) for attempt in found])


async def send_test(backend: Backend, requester: Requester, params: WebhookParams) -> TestSent:
    """Send a test event of type webhook.test at once, past what waits."""
    appkey = app_of(backend, params.appkey).appkey
    sent = await actions.send_test(backend, appkey, params.webhook_id)
    return TestSent(sent.taken, attempt_answer(sent.attempt))


async def resend(backend: Backend, requester: Requester, params: WebhookParams, body: ResendBody) -> ResendBegun:
    """Send the events of a time again, at most 31 days: beside the present ones, with the ids that they had."""
    appkey = app_of(backend, params.appkey).appkey
    await actions.resend(backend, appkey, params.webhook_id, body.from_ms, body.until_ms)
    return ResendBegun(body.from_ms, body.until_ms)


async def _change(
    backend: Backend,
    requester: Requester,
    request: ChangeWebhookRequest,
    body: WebhookBody | WebhookChangeBody | None = None,
) -> ChangedWebhook:
    if body is not None:
        if body.kinds is not None:
            request.kinds.CopyFrom(WebhookKinds(kinds=[KINDS[kind] for kind in body.kinds]))
        if body.msgids is not None:
            request.pushes.CopyFrom(WebhookPushes(msgids=body.msgids))
        if body.form is not None:
            request.form = FORMS[body.form]
    changed = await actions.change_webhook(backend, requester, request)
    webhook = webhook_answer(changed.webhook) if changed.HasField("webhook") else None
    if changed.secret:
        return ChangedWebhook(webhook=webhook, secret=changed.secret)
    return ChangedWebhook(webhook=webhook)
