"""Calls that send pushes, and drafts of pushes that need an approval."""

import asyncio
import hashlib
from typing import Any

from console.pushes.answers import (
    AudienceRemoved,
    AudienceSize,
    AudienceValue,
    AudienceValueList,
    Draft,
    DraftList,
    DraftSummary,
    Estimate,
    PushSent,
    SavedAudience,
    SavedAudienceList,
)
from console.send import actions as drafts
from console.send import actions as sending
from console.send import saved_audiences
from console.send.composed_pushes import ComposedPush
from console.shell.access import Requester
from console.shell.backend import Backend, app_of, visible_teams
from console.shell.calls import after
from console.shell.requests import (
    AppParams,
    AudienceValuesParams,
    DraftListParams,
    DraftParams,
    SavedAudienceBody,
    SavedAudienceParams,
    SendParams,
)
from protos.accounts.v1.drafts_pb2 import DecideDraftRequest, DraftStatus, DraftWithdrawn, StoredDraft
from protos.registry.v1.apps_pb2 import SavedAudience as SavedAudienceRecord
from services.errors import InputError


async def estimate(backend: Backend, requester: Requester, params: AppParams, body: bytes) -> Estimate:
    """Check a push and count the devices that it would go to now. Nothing is sent.

    The body is that of `/v2/push` without a sign. It names the app of the path, and may name an app of the other
    platform that belongs to the same team.
    """
    composed = _read(backend, requester, params.appkey, body)
    audiences, sizes = await asyncio.gather(
        backend.audiences.of(composed, samples=0), backend.audiences.sizes(composed)
    )
    devices = sum(audience.devices for audience in audiences)
    return Estimate(
        devices,
        [
            AudienceSize(audience.appkey, audience.devices, list(audience.unknown), size.app_devices, size.channels)
            for audience, size in zip(audiences, sizes, strict=True)
        ],
        composed.is_broadcast,
        await sending.approval_need(backend, requester, composed) is not None,
    )


async def audience_values(backend: Backend, requester: Requester, params: AudienceValuesParams) -> AudienceValueList:
    """List the tags, or the values of an attribute, that most devices of an app have, with the number of devices.

    Tags that address one person, as the app's settings name them, are not listed.
    """
    app_of(backend, params.appkey)
    found = await backend.audience_values.listed([params.appkey], params.field, params.words, params.limit)
    values = [AudienceValue(value.text, value.brand, devices) for value, devices in found.values]
    return AudienceValueList(values, found.has_more, found.devices)


async def list_audiences(backend: Backend, requester: Requester, params: AppParams) -> SavedAudienceList:
    """List the saved audiences of an app."""
    app = app_of(backend, params.appkey)
    return SavedAudienceList([_saved(audience) for audience in backend.apps.audiences(app.appkey)])


async def save_audience(
    backend: Backend, requester: Requester, params: AppParams, body: SavedAudienceBody
) -> SavedAudience:
    """Save an audience of tags or attributes under a name, in place of the one that has the name.

    Pushes that were sent or are scheduled stay as they are.
    """
    app = app_of(backend, params.appkey)
    saved = await saved_audiences.save_audience(
        backend, requester, app, body.name, body.send_to, must_be_new=body.must_be_new
    )
    return _saved(saved)


async def remove_audience(backend: Backend, requester: Requester, params: SavedAudienceParams) -> AudienceRemoved:
    """Remove a saved audience."""
    await saved_audiences.remove_audience(backend, requester, app_of(backend, params.appkey), params.name)
    return AudienceRemoved(params.name)


def _saved(audience: SavedAudienceRecord) -> SavedAudience:
    return SavedAudience(
        audience.name,
        saved_audiences.definition_of(audience),
        audience.owner,
        audience.created_ms,
        audience.changed_ms,
    )


async def send_push(backend: Backend, requester: Requester, params: SendParams, body: bytes, key: str) -> PushSent:
    """Send a push now or later, or store it as a draft where the team's rules demand an approval.

    The body is that of `/v2/push` without a sign, as for the estimate. Quotas and pauses hold as for app servers;
    allowed networks do not.
    """
    composed = _read(backend, requester, params.appkey, body)
    app = app_of(backend, params.appkey)
    digest = hashlib.blake2b(f"{requester.actor.name} {app.appkey} {key}".encode(), digest_size=16).hexdigest()
    devices = await sending.estimated_devices(backend, composed)
    outcome = await sending.send_push(
        *(backend, requester, app, composed, f"call-{digest}", devices, params.at_most),
        replaced_task=params.replaces,
    )
    if outcome.sent is None:
        return PushSent("draft", {}, "", outcome.draft.team_id, outcome.draft.draft_id, outcome.devices)
    sent = outcome.sent
    return PushSent("scheduled" if sent.task_key else "accepted", sent.msgids, sent.task_key, "", "", outcome.devices)


async def list_drafts(backend: Backend, requester: Requester, params: DraftListParams) -> DraftList:
    """List the drafts of the team, the newest first. A new draft moves the others to later pages."""
    teams = [team.team_id for team in visible_teams(backend, requester)]
    offset = after(params.cursor)
    found = await drafts.drafts_of(
        backend, teams, waiting_only=params.waiting, words=params.words, offset=offset, limit=params.limit + 1
    )
    shown = found[: params.limit]
    following = str(offset + params.limit) if len(found) > len(shown) else ""
    return DraftList([DraftSummary(**_fields(stored)) for stored in shown], following)


async def draft(backend: Backend, requester: Requester, params: DraftParams) -> Draft:
    """Return a draft with its content.

    Approvals and rejections are made by people in the console: an API token is no second person.
    """
    stored = await drafts.draft_of(backend, params.team_id, params.draft_id)
    return _draft(stored)


async def withdraw_draft(backend: Backend, requester: Requester, params: DraftParams) -> Draft:
    """Take a draft back, so that it cannot be approved any more."""
    decision = DecideDraftRequest(draft_id=params.draft_id, withdrawn=DraftWithdrawn())
    await drafts.decide_draft(backend, requester, decision, params.team_id)
    return _draft(await drafts.draft_of(backend, params.team_id, params.draft_id))


def _read(backend: Backend, requester: Requester, appkey: str, body: bytes) -> ComposedPush:
    app = app_of(backend, appkey)
    try:
        text = body.decode()
    except UnicodeDecodeError:
        raise InputError("the body is not UTF-8") from None
    return sending.read_push(backend, requester, app, text)


def _draft(stored: StoredDraft) -> Draft:
    msgids = {push.appkey: push.msgid for push in stored.draft.task.pushes}
    return Draft(**_fields(stored), request_json=stored.draft.body_json.decode(), msgids=msgids)


def _fields(stored: StoredDraft) -> dict[str, Any]:
    draft = stored.draft
    return {
        "draft_id": draft.draft_id,
        "team_id": draft.team_id,
        "title": stored.title,
        "text": stored.text,
        "status": DraftStatus.Name(stored.status).removeprefix("DRAFT_STATUS_").lower(),
        "is_broadcast": draft.is_broadcast,
        "estimated_devices": draft.estimated_devices,
        "authors": list(draft.authors),
        "created_ms": draft.created_ms,
        "expires_ms": draft.expires_ms,
        "decided_by": stored.decided_by,
        "decided_ms": stored.decided_ms,
        "reason": stored.reason,
    }
