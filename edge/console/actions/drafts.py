"""Drafts: the list of those that a team has, one of them, and a decision about it."""

import falcon

from edge.console.access_control.requester import Requester
from edge.console.backend import Backend
from protos.accounts.v1.drafts_pb2 import DecideDraftRequest, GetDraftsRequest, ListDraftsRequest, StoredDraft


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
    """Return drafts of the teams without their content, the newest first; `waiting_first`: after those that wait.

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
