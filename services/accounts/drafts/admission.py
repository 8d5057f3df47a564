"""Decisions whether pushes are sent without an approval: by teams' rules and what the sender sent before. Pure.

Errors as in `decide`.
"""

import hashlib
from collections.abc import Iterable, Sequence

from protos.accounts.v1.drafts_pb2 import (
    AdmitPushRequest,
    AdmitTaskRequest,
    AdmittedApp,
    ApprovalNeed,
    Draft,
    DraftFact,
    DraftStatus,
    DraftSubmitted,
    PushAdmitted,
)
from protos.scheduling.v1.scheduling_pb2 import CreateTask
from services.accounts.decide import check_may
from services.accounts.drafts.decide import DEFAULT_EXPIRY_S, MAX_DRAFT_BYTES, author_names
from services.accounts.store import AccountTable
from services.domain.accounts.approval import Reach, approval_need, draft_digest, has_rules
from services.domain.accounts.permissions import Action, Actor
from services.runtime.errors import UnavailableError

_SENT = (DraftStatus.DRAFT_STATUS_APPROVED, DraftStatus.DRAFT_STATUS_SENT)


def are_counted(accounts: AccountTable, appkeys: Iterable[str]) -> bool:
    """Return whether the team of one of the apps has approval rules, so that pushes to them are decided and counted."""
    teams = {accounts.given_app(appkey).team_id for appkey in appkeys}
    return any(has_rules(team.rules) for team_id in teams if (team := accounts.team(team_id)))


def admit_push(
    accounts: AccountTable, actor: Actor, request: AdmitPushRequest, reached: Sequence[Reach], now_ms: int
) -> tuple[ApprovalNeed | None, list[DraftFact]]:
    """Return why the push needs an approval; or None, and the fact that counts it if there are rules.

    `reached`: the devices of each push; empty if there were no rules when they should have been counted.
    """
    for push in request.pushes:
        check_may(actor, Action.SEND, accounts.given_app(push.appkey).team_id)
    appkeys = [push.appkey for push in request.pushes]
    if not are_counted(accounts, appkeys):
        return None, []
    if not reached:
        raise UnavailableError("the approval rules of the team were changed just now; try again")
    sender = sender_of(accounts, actor.name)
    need = _need(accounts, sender, reached, now_ms, request.push_key, is_alone=request.is_timed)
    if need is not None or request.is_timed or not request.push_key:
        return need, []
    return None, [_admitted(accounts, sender, reached, request.push_key)]


def admit_task(
    accounts: AccountTable, request: AdmitTaskRequest, reached: Sequence[Reach], now_ms: int
) -> tuple[str, list[DraftFact]]:
    """Return the id of the draft that a due task becomes because it needs an approval, "" if it may be sent; and facts.

    A task that sends an approved draft has its approval. `reached` as for `admit_push`.
    """
    approved, held_id = accounts.draft(request.task_key), held_draft_id(request.task_key)
    if approved is not None and approved.status in _SENT:
        return "", []
    if accounts.draft(held_id) is not None:
        return held_id, []
    push_key = f"task/{request.task_key}".encode()
    if accounts.is_admitted(push_key) or not are_counted(accounts, (push.appkey for push in request.pushes)):
        return "", []
    if not reached:
        raise UnavailableError("the approval rules of the team were changed just now; try again")
    sender = sender_of(accounts, request.origin.actor)
    need = _need(accounts, sender, reached, now_ms, push_key)
    if need is None:
        return "", [_admitted(accounts, sender, reached, push_key, request.task_key)]
    draft = _held_draft(accounts, request, reached, need, now_ms)
    return held_id, [DraftFact(draft_id=held_id, submitted=DraftSubmitted(draft=draft))]


def sender_of(accounts: AccountTable, actor: str) -> str:
    """Return whose pushes count together with those of the account user/ID or token/ID: the user who made a token."""
    maker = accounts.maker_of_token(actor.removeprefix("token/")) if actor.startswith("token/") else ""
    return f"user/{maker}" if maker else actor


def held_draft_id(task_key: str) -> str:
    """Return the id of the draft that a timed task becomes; scheduling knows the task's own key already."""
    return hashlib.blake2b(f"held/{task_key}".encode(), digest_size=16).hexdigest()


def _need(
    accounts: AccountTable,
    sender: str,
    reached: Sequence[Reach],
    now_ms: int,
    push_key: bytes,
    *,
    is_alone: bool = False,
) -> ApprovalNeed | None:
    """Return why a team demands an approval. `is_alone`: earlier pushes of the sender do not count."""
    earlier = [] if is_alone else accounts.earlier_devices(sender, now_ms, push_key)
    of_app: dict[str, int] = {}
    of_team: dict[str, int] = {}
    for found in earlier:
        of_app[found.appkey] = of_app.get(found.appkey, 0) + found.devices
        of_team[found.team_id] = of_team.get(found.team_id, 0) + found.devices
    teams = dict.fromkeys(accounts.given_app(each.appkey).team_id for each in reached)
    for team_id in teams:
        team = accounts.team(team_id)
        if team is None:
            continue
        own = [
            each._replace(earlier_devices=of_app.get(each.appkey, 0))
            for each in reached
            if accounts.given_app(each.appkey).team_id == team_id
        ]
        need = approval_need(team.rules, own, of_team.get(team_id, 0))
        if need is not None:
            return need
    return None


def _admitted(
    accounts: AccountTable, sender: str, reached: Sequence[Reach], push_key: bytes, task_key: str = ""
) -> DraftFact:
    apps = [
        AdmittedApp(appkey=each.appkey, team_id=accounts.given_app(each.appkey).team_id, devices=each.devices)
        for each in reached
    ]
    return DraftFact(admitted=PushAdmitted(push_key=push_key, sender=sender, apps=apps, task_key=task_key))


def _held_draft(
    accounts: AccountTable, request: AdmitTaskRequest, reached: Sequence[Reach], need: ApprovalNeed, now_ms: int
) -> Draft:
    """Return the draft that waits in place of the task, with its pushes and their message ids, due at once."""
    draft = Draft(
        draft_id=held_draft_id(request.task_key),
        team_id=accounts.given_app(request.pushes[0].appkey).team_id,
        body_json=request.pushes[0].request_json.encode(),
        task=CreateTask(pushes=request.pushes),
        is_broadcast=need.rule == ApprovalNeed.RULE_BROADCASTS,
        estimated_devices=sum(each.devices for each in reached),
        authors=sorted(author_names(accounts, request.origin.actor)),
        created_ms=now_ms,
        expires_ms=now_ms + 1000 * DEFAULT_EXPIRY_S,
        version=1,
        need=need,
        held_task_key=request.task_key,
    )
    for push in draft.task.pushes:
        push.task_key = draft.draft_id
    if draft.ByteSize() > MAX_DRAFT_BYTES:
        draft.ClearField("body_json")
    draft.digest = draft_digest(draft)
    return draft
