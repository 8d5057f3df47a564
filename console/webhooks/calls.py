"""Calls about webhooks, of an app and of a team."""

from console.shell.access import Requester
from console.shell.backend import Backend
from console.shell.requests import (
    AppParams,
    ResendBody,
    RotationBody,
    TeamParams,
    TeamWebhookParams,
    WebhookBody,
    WebhookChangeBody,
    WebhookParams,
)
from console.webhooks import actions
from console.webhooks.actions import WebhookOwner
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
from protos.registry.v1.registry_pb2 import ChangeWebhookRequest, WebhookKinds, WebhookLabels, WebhookPushes
from services.domain.webhooks import KINDS


async def list_webhooks(backend: Backend, requester: Requester, params: AppParams) -> WebhookList:
    """List an app's webhooks, and the state of their receivers."""
    return await _list(backend, params)


async def add_webhook(backend: Backend, requester: Requester, params: AppParams, body: WebhookBody) -> ChangedWebhook:
    """Make a webhook. The answer has its secret, which is not shown again."""
    return await _add(backend, requester, params, body)


async def set_webhook(
    backend: Backend, requester: Requester, params: WebhookParams, body: WebhookChangeBody
) -> ChangedWebhook:
    """Change a webhook; what is absent or null stays."""
    return await _set(backend, requester, params, body)


async def rotate_webhook_secret(
    backend: Backend, requester: Requester, params: WebhookParams, body: RotationBody
) -> ChangedWebhook:
    """Give a webhook another secret. Its requests are signed with both for `keep_old_s`."""
    return await _change(backend, requester, _request(backend, params, rotate_keep_old_s=body.keep_old_s))


async def resume_webhook(backend: Backend, requester: Requester, params: WebhookParams) -> ChangedWebhook:
    """Resume a webhook that was paused because its receiver had failed for three days. No event is lost."""
    return await _change(backend, requester, _request(backend, params, resume=True))


async def remove_webhook(backend: Backend, requester: Requester, params: WebhookParams) -> ChangedWebhook:
    """Remove a webhook; events that wait for it are not sent any more."""
    return await _change(backend, requester, _request(backend, params, remove=True))


async def list_attempts(backend: Backend, requester: Requester, params: WebhookParams) -> AttemptList:
    """List the latest 200 requests to the receiver of a webhook, the newest first."""
    return await _attempts(backend, params)


async def send_test(backend: Backend, requester: Requester, params: WebhookParams) -> TestSent:
    """Send a test event of type webhook.test at once, past what waits."""
    return await _test(backend, params)


async def resend(backend: Backend, requester: Requester, params: WebhookParams, body: ResendBody) -> ResendBegun:
    """Send the events of a time again, at most 31 days: beside the present ones, with the ids that they had."""
    return await _resend(backend, params, body)


async def list_team_webhooks(backend: Backend, requester: Requester, params: TeamParams) -> WebhookList:
    """List a team's webhooks, which get the events of all its apps, and the state of their receivers."""
    return await _list(backend, params)


async def add_team_webhook(
    backend: Backend, requester: Requester, params: TeamParams, body: WebhookBody
) -> ChangedWebhook:
    """Make a webhook of a team. The answer has its secret, which is not shown again."""
    return await _add(backend, requester, params, body)


async def set_team_webhook(
    backend: Backend, requester: Requester, params: TeamWebhookParams, body: WebhookChangeBody
) -> ChangedWebhook:
    """Change a webhook of a team; what is absent or null stays."""
    return await _set(backend, requester, params, body)


async def rotate_team_webhook_secret(
    backend: Backend, requester: Requester, params: TeamWebhookParams, body: RotationBody
) -> ChangedWebhook:
    """Give a webhook of a team another secret. Its requests are signed with both for `keep_old_s`."""
    return await _change(backend, requester, _request(backend, params, rotate_keep_old_s=body.keep_old_s))


async def resume_team_webhook(backend: Backend, requester: Requester, params: TeamWebhookParams) -> ChangedWebhook:
    """Resume a webhook of a team that was paused because its receiver had failed for three days."""
    return await _change(backend, requester, _request(backend, params, resume=True))


async def remove_team_webhook(backend: Backend, requester: Requester, params: TeamWebhookParams) -> ChangedWebhook:
    """Remove a webhook of a team; events that wait for it are not sent any more."""
    return await _change(backend, requester, _request(backend, params, remove=True))


async def list_team_attempts(backend: Backend, requester: Requester, params: TeamWebhookParams) -> AttemptList:
    """List the latest 200 requests to the receiver of a team's webhook, the newest first."""
    return await _attempts(backend, params)


async def send_team_test(backend: Backend, requester: Requester, params: TeamWebhookParams) -> TestSent:
    """Send a test event of type webhook.test to a team's webhook at once, past what waits."""
    return await _test(backend, params)


async def resend_to_team(
    backend: Backend, requester: Requester, params: TeamWebhookParams, body: ResendBody
) -> ResendBegun:
    """Send the events of a time to a team's webhook again, at most 31 days, with the ids that they had."""
    return await _resend(backend, params, body)


# What the calls about the webhooks of apps and of teams share.


async def _list(backend: Backend, params: AppParams | TeamParams) -> WebhookList:
    await backend.apps.refresh()
    subscriber = _subscriber(params)
    found = actions.webhooks_of(backend, subscriber)
    states = await actions.states(backend, subscriber)
    return WebhookList([webhook_answer(each, states.get(each.webhook_id)) for each in found])


async def _add(
    backend: Backend, requester: Requester, params: AppParams | TeamParams, body: WebhookBody
) -> ChangedWebhook:
    return await _change(backend, requester, _request(backend, params, url=body.url), body)


async def _set(
    backend: Backend, requester: Requester, params: WebhookParams | TeamWebhookParams, body: WebhookChangeBody
) -> ChangedWebhook:
    request = _request(backend, params, url=body.url, disabled=body.disabled)
    return await _change(backend, requester, request, body)


async def _attempts(backend: Backend, params: WebhookParams | TeamWebhookParams) -> AttemptList:
    found = await actions.attempts(backend, _known(backend, params), params.webhook_id)
    return AttemptList([attempt_answer(attempt) for attempt in found])


async def _test(backend: Backend, params: WebhookParams | TeamWebhookParams) -> TestSent:
    sent = await actions.send_test(backend, _known(backend, params), params.webhook_id)
    return TestSent(sent.taken, attempt_answer(sent.attempt))


async def _resend(backend: Backend, params: WebhookParams | TeamWebhookParams, body: ResendBody) -> ResendBegun:
    await actions.resend(backend, _known(backend, params), params.webhook_id, body.from_ms, body.until_ms)
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
        if body.labels is not None:
            request.labels.CopyFrom(WebhookLabels(labels=body.labels))
        if body.form is not None:
            request.form = FORMS[body.form]
    changed = await actions.change_webhook(backend, requester, request)
    webhook = webhook_answer(changed.webhook) if changed.HasField("webhook") else None
    if changed.secret:
        return ChangedWebhook(webhook=webhook, secret=changed.secret)
    return ChangedWebhook(webhook=webhook)


def _request(
    backend: Backend,
    params: AppParams | TeamParams,
    *,
    url: str | None = None,
    disabled: bool | None = None,
    rotate_keep_old_s: int | None = None,
    resume: bool = False,
    remove: bool = False,
) -> ChangeWebhookRequest:
    """Return the change of the webhook that the path names, or of a new one. Errors as for `_known`."""
    return ChangeWebhookRequest(
        **_known(backend, params)._asdict(),
        webhook_id=params.webhook_id if isinstance(params, WebhookParams | TeamWebhookParams) else "",
        url=url,
        disabled=disabled,
        rotate_keep_old_s=rotate_keep_old_s,
        resume=resume,
        remove=remove,
    )


def _known(backend: Backend, params: AppParams | TeamParams) -> WebhookOwner:
    """Return the app or the team of a path. HTTP 404: there is no such app; NotFoundError: no such team."""
    subscriber = _subscriber(params)
    actions.webhooks_of(backend, subscriber)
    return subscriber


def _subscriber(params: AppParams | TeamParams) -> WebhookOwner:
    return WebhookOwner(params.appkey) if isinstance(params, AppParams) else WebhookOwner(team_id=params.team_id)
