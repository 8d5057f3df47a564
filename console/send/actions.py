"""Sends a push, or stores it as a draft where rules demand an approval; lists drafts and decides about them."""

import hashlib
from functools import partial
from typing import NamedTuple

import falcon

from console.send.composed_pushes import BeforeCommit, ComposedPush, DraftVersion, SentPush
from console.shell.access import Requester
from console.shell.backend import Backend, visible_apps
from console.tasks.actions import cancel_task
from protos.accounts.v1.drafts_pb2 import (
    AdmitPushRequest,
    AdmitPushResponse,
    ApprovalNeed,
    DecideDraftRequest,
    Draft,
    GetDraftsRequest,
    ListDraftsRequest,
    PushAudience,
    StoredDraft,
)
from protos.registry.v1.apps_pb2 import App
from services.domain.permissions import Action
from services.errors import ConflictError, PermissionDeniedError

ADMISSION_S = 30.0
"""Deadline of the question whether a push needs an approval; targeting counts the devices meanwhile, seconds."""


class SendOutcome(NamedTuple):
    """The outcome of sending a push to `devices` devices. `sent` None: it needs an approval and became `draft`."""

    devices: int
    sent: SentPush | None
    draft: Draft


def partners(backend: Backend, requester: Requester, app: App) -> list[App]:
    """Return the app's partners: the apps of the other platform in its team, to which a push may go as well."""
    team_id = backend.accounts.team_of(app.appkey)
    return [
        other
        for other in visible_apps(backend, requester)
        if other.platform != app.platform
        and backend.accounts.team_of(other.appkey) == team_id
        and requester.may_app(Action.SEND, other.appkey)
    ]


def read_push(backend: Backend, requester: Requester, app: App, text: str) -> ComposedPush:
    """Check the text of a v2 request. InputError: it breaks a rule.

    PermissionDeniedError: it names an app that is neither this one nor a partner of it.
    """
    composed = backend.composed_pushes.read(text)
    allowed = {app.appkey, *(partner.appkey for partner in partners(backend, requester, app))}
    if app.appkey not in composed.order.apps.appkeys or not allowed.issuperset(composed.order.apps.appkeys):
        raise PermissionDeniedError("the push names an app that is neither this one nor a partner of it in its team")
    return composed


async def approval_need(
    backend: Backend, requester: Requester, composed: ComposedPush, push_key: bytes = b""
) -> ApprovalNeed | None:
    """Return why the rules of the team demand an approval of the push; None: it may be sent.

    With `push_key` (see `key_of_push`), a push that may be sent now counts for the rules on the sender's later pushes.
    Errors as for AdmitPush; after one, such as of a role that counts the devices, the push must not be sent.
    """
    order = composed.order
    asked = AdmitPushRequest(
        pushes=[PushAudience(appkey=push.app.appkey, audience=push.audience) for push in order.pushes],
        origin=requester.origin,
        push_key=push_key,
        is_timed=order.due_ms is not None,
    )
    answer: AdmitPushResponse = await backend.roles.drafts.AdmitPush(asked, timeout=ADMISSION_S)
    return answer.need if answer.HasField("need") else None


def key_of_push(requester: Requester, composed: ComposedPush, key: str) -> bytes:
    """Return the hash of sender, key and content that names a push: under one key other content is another push."""
    return hashlib.blake2b(f"{requester.actor.name} {key} {composed.text}".encode(), digest_size=16).digest()


async def estimated_devices(backend: Backend, composed: ComposedPush) -> int:
    """Return how many devices would get the push now. Errors as for Audiences.of."""
    return sum(audience.devices for audience in await backend.audiences.of(composed, samples=0))


async def send_push(
    backend: Backend,
    requester: Requester,
    app: App,
    composed: ComposedPush,
    key: str,
    devices: int,
    at_most: int | None = None,
    replaced: DraftVersion | None = None,
    replaced_task: str = "",
) -> SendOutcome:
    """Send a push once for the key, or make its task or draft. With `replaced`, change this draft, which stays a draft.

    `devices`: how many it goes to, by `estimated_devices`. A push that became a draft under the key stays that draft,
    also where it needs no approval any more.

    `replaced_task`: the key of a timed task that waits, which the push replaces. It is cancelled when nothing but the
    log can refuse the push any more; where it fell due or ended meanwhile, the push is not sent.

    Errors as for `send` and `submit` of ComposedPushes; if a role does not answer, the push may have
    been sent. ConflictError: the audience has more than `at_most` devices.
    """
    if (before := await backend.composed_pushes.sent_before(composed, key, requester.origin)) is not None:
        return SendOutcome(devices, before, Draft())
    if not replaced and (known := await backend.composed_pushes.submitted_before(composed, key)) is not None:
        return SendOutcome(devices, None, known.draft)
    if at_most is not None and devices > at_most:
        raise ConflictError(f"nothing was sent: the push would go to more devices ({devices}) than it may ({at_most})")
    push_key = b"" if replaced else key_of_push(requester, composed, key)
    need = await approval_need(backend, requester, composed, push_key)
    cancel = _cancel_of(backend, requester, app, key, replaced_task) if replaced_task else None
    if replaced or need is not None:
        team_id = backend.accounts.team_of(app.appkey)
        stored = await backend.composed_pushes.submit(
            composed, key, requester.origin, team_id, devices, need, replaced, cancel
        )
        return SendOutcome(devices, None, stored.draft)
    return SendOutcome(devices, await backend.composed_pushes.send(composed, key, requester.origin, cancel), Draft())


def _cancel_of(backend: Backend, requester: Requester, app: App, key: str, task_key: str) -> BeforeCommit:
    """Return the cancel of a task that a push under this key replaces; a repeat of it under the key is no error."""
    identity = f"replace {requester.actor.name} {key} {task_key}"
    event_id = hashlib.blake2b(identity.encode(), digest_size=16).digest()
    return partial(cancel_task, backend, requester, app.appkey, task_key, event_id)


# Drafts: the list of those that a team has, one of them, and a decision about it.


async def drafts_of(
    backend: Backend,
    team_ids: list[str],
    *,
    waiting_only: bool = False,
    waiting_first: bool = False,
    words: str = "",
    offset: int = 0,
    limit: int,
) -> list[StoredDraft]:
    """Return drafts of the teams without their content, the newest first; `waiting_first`: drafts that wait come before
    all others.

    `words`: only those that have this in their title, or in the beginning of their text.
    """
    if not team_ids:
        return []
    asked = ListDraftsRequest(
        team_ids=team_ids,
        waiting_only=waiting_only,
        waiting_first=waiting_first,
        words=words,
        offset=offset,
        limit=limit,
    )
    return list((await backend.roles.drafts.ListDrafts(asked)).drafts)


async def draft_of(backend: Backend, team_id: str, draft_id: str) -> StoredDraft:
    """Return a draft. HTTP 404: the team has none with this id."""
    found = (await backend.roles.drafts.GetDrafts(GetDraftsRequest(draft_ids=[draft_id]))).drafts
    if not found or found[0].draft.team_id != team_id:
        raise falcon.HTTPNotFound
    return found[0]


async def decide_draft(backend: Backend, requester: Requester, decision: DecideDraftRequest, team_id: str) -> None:
    """Approve, reject or withdraw a draft of the team. Errors as for DecideDraft and `draft_of`."""
    await draft_of(backend, team_id, decision.draft_id)
    decision.origin.CopyFrom(requester.origin)
    await backend.roles.drafts.DecideDraft(decision)
