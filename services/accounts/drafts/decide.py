"""Decisions about drafts, and whether pushes need an approval. Pure.

Errors as in `services.accounts.decide`.
"""

import hashlib
import re
from collections.abc import Iterable, Sequence

from protos.accounts.v1.drafts_pb2 import (
    AdmitPushRequest,
    AdmitTaskRequest,
    AdmittedApp,
    ApprovalNeed,
    DecideDraftRequest,
    Draft,
    DraftExpired,
    DraftFact,
    DraftSent,
    DraftStatus,
    DraftSubmitted,
    PushAdmitted,
    SubmitDraftRequest,
)
from protos.runtime.v1.log_pb2 import Meta
from protos.scheduling.v1.scheduling_pb2 import CreateTask, TaskCommand
from services.accounts.decide import author_names, check_may
from services.accounts.decide_teams import team_by_id
from services.accounts.state import DraftState
from services.accounts.store import AccountTable
from services.domain.approval import Reach, approval_need, draft_digest, has_rules
from services.domain.permissions import Action, Actor
from services.errors import Code, ConflictError, InputError, NotFoundError, PermissionDeniedError, UnavailableError

DEFAULT_EXPIRY_S = 3 * 86_400
MAX_EXPIRY_S = 30 * 86_400
MAX_DRAFT_BYTES = 700_000
"""Largest draft; the task that sends it is smaller, so that the log accepts it too."""

_MAX_REASON = 500
_DRAFT_ID = re.compile(r"[0-9a-f]{32}")


def submit_draft(
    accounts: AccountTable, actor: Actor, request: SubmitDraftRequest, new_id: str, now_ms: int
) -> list[DraftFact]:
    """Return the draft that waits; nothing if this call is a repetition.

    Whoever changes a draft becomes one of its authors, none of whom may approve it.
    """
    given = request.draft
    check_may(actor, Action.SEND, team_by_id(accounts, given.team_id).team_id)
    if not given.draft_id and _is_repeated(accounts, actor, given, new_id):
        return []
    _check_content(accounts, given)
    known = _changeable(accounts, given, now_ms) if given.draft_id else None
    if known and request.HasField("replaced_digest") and request.replaced_digest != known.draft.digest:
        if known.draft.changed_by == actor.name and known.draft.body_json == given.body_json:
            return []
        raise ConflictError(Code.DRAFT_CHANGED)
    authors = {*(known.draft.authors if known else ()), *author_names(accounts, actor.name)}
    draft = Draft(
        draft_id=given.draft_id or new_id,
        team_id=given.team_id,
        body_json=given.body_json,
        task=given.task,
        is_broadcast=given.is_broadcast,
        estimated_devices=given.estimated_devices,
        authors=sorted(authors),
        created_ms=known.draft.created_ms if known else now_ms,
        expires_ms=_expires_ms(request, now_ms),
        version=known.draft.version + 1 if known else 1,
        changed_by=actor.name if known else "",
        changed_ms=now_ms if known else 0,
        need=given.need if given.HasField("need") else None,
        held_task_key=known.draft.held_task_key if known else "",
    )
    draft.digest = draft_digest(draft)
    if draft.ByteSize() > MAX_DRAFT_BYTES:
        raise InputError(Code.DRAFT_TOO_LARGE, size=draft.ByteSize(), most=MAX_DRAFT_BYTES)
    return [DraftFact(draft_id=draft.draft_id, submitted=DraftSubmitted(draft=draft))]


def decide_draft(accounts: AccountTable, actor: Actor, request: DecideDraftRequest, now_ms: int) -> list[DraftFact]:
    """Return the approval, rejection or withdrawal of a draft that waits."""
    kept = draft_by_id(accounts, request.draft_id)
    draft = kept.draft
    match request.WhichOneof("decision"):
        case "approved":
            _check_may_approve(actor, draft)
            _check_waits(kept, now_ms)
            if request.approved.digest != draft.digest:
                raise ConflictError(Code.DRAFT_CHANGED_BEFORE_APPROVAL)
            _check_apps(accounts, draft)
            return [DraftFact(draft_id=draft.draft_id, approved=request.approved)]
        case "rejected":
            check_may(actor, Action.APPROVE, draft.team_id)
            _check_waits(kept, now_ms)
            if len(request.rejected.reason) > _MAX_REASON:
                raise InputError(Code.TOO_LONG, at="reason", most=_MAX_REASON)
            return [DraftFact(draft_id=draft.draft_id, rejected=request.rejected)]
        case "withdrawn":
            check_may(actor, Action.SEND, draft.team_id)
            _check_waits(kept, now_ms)
            return [DraftFact(draft_id=draft.draft_id, withdrawn=request.withdrawn)]
        case _:
            raise InputError("decision must be an approval, a rejection or a withdrawal")


def sent(draft_id: str) -> DraftFact:
    return DraftFact(draft_id=draft_id, sent=DraftSent())


def expired(drafts: Sequence[Draft]) -> list[DraftFact]:
    return [DraftFact(draft_id=draft.draft_id, expired=DraftExpired(expires_ms=draft.expires_ms)) for draft in drafts]


def task_command(kept: DraftState) -> TaskCommand:
    """Return the command that sends an approved draft; repeats have the same event id, task key and message ids.

    Its time is that of the approval, and its origin that of the author.
    """
    draft = kept.draft
    event_id = hashlib.blake2b(f"accounts/{draft.draft_id}".encode(), digest_size=16).digest()
    command = TaskCommand(
        meta=Meta(event_id=event_id, time_ms=kept.decided_ms, origin=kept.origin),
        task_key=draft.draft_id,
        create=draft.task,
    )
    command.create.due_ms = max(draft.task.due_ms, kept.decided_ms)
    return command


def draft_by_id(accounts: AccountTable, draft_id: str) -> DraftState:
    """Return a draft. NotFoundError: there is none with this id."""
    kept = accounts.draft(draft_id)
    if kept is None:
        raise NotFoundError(Code.NO_SUCH_DRAFT, draft_id=draft_id)
    return kept


def _is_repeated(accounts: AccountTable, actor: Actor, given: Draft, new_id: str) -> bool:
    """Return whether the actor has submitted `new_id` already. InputError: it is no id, or that of another draft."""
    if not _DRAFT_ID.fullmatch(new_id):
        raise InputError("new_draft_id must have 32 hexadecimal digits")
    known = accounts.draft(new_id)
    if known is not None and (known.draft.team_id != given.team_id or actor.name not in known.draft.authors):
        raise InputError("new_draft_id is the id of another draft")
    return known is not None


def _changeable(accounts: AccountTable, given: Draft, now_ms: int) -> DraftState:
    kept = draft_by_id(accounts, given.draft_id)
    _check_waits(kept, now_ms)
    if kept.draft.team_id != given.team_id:
        raise ConflictError(Code.DRAFT_OF_OTHER_TEAM)
    return kept


def _check_may_approve(actor: Actor, draft: Draft) -> None:
    if not actor.is_person:
        raise PermissionDeniedError("only a person who has logged in may approve a draft")
    check_may(actor, Action.APPROVE, draft.team_id)
    if actor.name in draft.authors:
        raise PermissionDeniedError(Code.OWN_DRAFT)


def _check_waits(kept: DraftState, now_ms: int) -> None:
    status = kept.status_at(now_ms)
    if status != DraftStatus.DRAFT_STATUS_WAITING:
        name = DraftStatus.Name(status).removeprefix("DRAFT_STATUS_").lower()
        raise ConflictError(Code.DRAFT_DECIDED, state=name)


def _check_content(accounts: AccountTable, draft: Draft) -> None:
    task = draft.task
    if not task.pushes or any(push.audience.WhichOneof("audience") is None for push in task.pushes):
        raise InputError("a draft needs at least one push, and each push an audience")
    if task.HasField("claim") or task.at_once:
        raise InputError("a draft is sent under its own key: its task can have no idempotency key")
    _check_apps(accounts, draft)


def _check_apps(accounts: AccountTable, draft: Draft) -> None:
    for push in draft.task.pushes:
        if accounts.given_app(push.appkey).team_id != draft.team_id:
            raise ConflictError(Code.APP_OF_OTHER_TEAM, appkey=push.appkey)


def _expires_ms(request: SubmitDraftRequest, now_ms: int) -> int:
    """Return the time in ms since 1970 at which the draft expires: for a timed push its due time at the latest."""
    if request.expires_in_s > MAX_EXPIRY_S:
        raise InputError(f"a draft can wait for {MAX_EXPIRY_S // 86_400} days at most")
    expires_ms = now_ms + 1000 * (request.expires_in_s or DEFAULT_EXPIRY_S)
    due_ms = request.draft.task.due_ms
    return min(expires_ms, due_ms) if due_ms > now_ms else expires_ms


# Decisions whether pushes are sent without an approval: by teams' rules and what the sender sent before.

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
    """Return the account under which pushes of user/ID or token/ID count: for a token, the user who made it."""
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
    """Return why a team demands an approval, if one does. `is_alone`: the sender's earlier pushes do not count."""
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
