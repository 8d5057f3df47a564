"""The people of a team: they change users, members, rules, API tokens and drafts, as the console does for them."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from random import Random
from typing import TypeVar

from protos.accounts.v1.accounts_pb2 import (
    MEMBER_ROLE_APPROVER,
    MEMBER_ROLE_SENDER,
    MEMBER_ROLE_UNSPECIFIED,
    MEMBER_ROLE_VIEWER,
    ApprovalRules,
    MemberRole,
)
from protos.accounts.v1.drafts_pb2 import (
    DecideDraftRequest,
    Draft,
    DraftApproved,
    DraftRejected,
    DraftStatus,
    DraftWithdrawn,
    GetDraftsRequest,
    SubmitDraftRequest,
)
from protos.accounts.v1.drafts_pb2_grpc import DraftsServiceStub
from protos.accounts.v1.service_pb2 import (
    CreateTeamRequest,
    CreateTokenRequest,
    CreateUserRequest,
    GetUsersRequest,
    GiveAppRequest,
    ListTeamsRequest,
    RevokeTokenRequest,
    SetMemberRequest,
    TeamSummary,
    UpdateTeamRequest,
    UpdateUserRequest,
)
from protos.accounts.v1.service_pb2_grpc import AccountsServiceStub
from protos.push.v1.push_pb2 import SendPush
from protos.runtime.v1.log_pb2 import Origin
from protos.scheduling.v1.scheduling_pb2 import CreateTask
from services.domain.ids import event_id
from services.errors import ConflictError
from tests.simulation.backends.accounts.ledger import AccountsLedger
from tests.simulation.backends.ledger import Ledger, until_answered
from tests.simulation.kernel.installation import Installation

Result = TypeVar("Result")
_OPERATOR = Origin(interface="cli")
_READ_BACK = 0.5
_TWO_AT_ONCE = 0.3
"""Share of the decisions during which somebody withdraws the draft, and of the changes during which one approves."""

_DUE_MS = 3_000
"""How long after its submission a timed draft is due at most."""

STATUSES = {
    "approved": (DraftStatus.DRAFT_STATUS_APPROVED, DraftStatus.DRAFT_STATUS_SENT),
    "rejected": (DraftStatus.DRAFT_STATUS_REJECTED,),
    "withdrawn": (DraftStatus.DRAFT_STATUS_WITHDRAWN,),
    "expired": (DraftStatus.DRAFT_STATUS_EXPIRED,),
}
"""The statuses that a draft may have after a decision, or without one in time; the last one it has in the end."""


class People:
    """An operator, an author and an approver of one team, to which one app belongs; one call after the other.

    They belong to the world, so no fault ends them. A call without an answer may have been carried out, or be so later:
    what it was to change is checked no more.
    """

    def __init__(
        self,
        installation: Installation,
        appkey: str,
        new_push: Callable[[str], SendPush],
        ledgers: tuple[Ledger, AccountsLedger],
        random: Random,
    ) -> None:
        (channel,) = installation.client_peers().all("accounts")
        self._accounts, self._drafts = AccountsServiceStub(channel), DraftsServiceStub(channel)
        self._loop, self._clock = installation.world.loop, installation.world.clock()
        self._appkey, self._new_push = appkey, new_push
        self._ledger, self._answers = ledgers
        self._random = random
        self._names = 0
        self._team_id = self._author = self._approver = ""
        self._tokens: list[str] = []
        self._unanswered: SubmitDraftRequest | None = None
        self._waiting: list[str] = []

    async def run(self, until_s: float, rate: float) -> None:
        """Make the team, then change it and its drafts until the time has come; `rate`: calls a second."""
        await self._make_team()
        actions = (
            *(self._submit, self._submit, self._submit, self._decide, self._decide, self._change_draft),
            *(self._set_rules, self._set_member, self._rename, self._create_token, self._revoke_token),
        )
        while self._loop.time() < until_s:
            await asyncio.sleep(self._random.expovariate(rate))
            action = self._random.choice(actions)
            await self._ledger.attempt(action.__name__.lstrip("_"), action, self._clock)

    async def _make_team(self) -> None:
        made = await until_answered(
            lambda: self._accounts.CreateTeam(CreateTeamRequest(name=self._new_name(), origin=_OPERATOR))
        )
        self._team_id = made.team.team.team_id
        self._note_team(made.team)
        self._author, self._approver = [await self._new_user() for _ in range(2)]
        for user_id, role in ((self._author, MEMBER_ROLE_SENDER), (self._approver, MEMBER_ROLE_APPROVER)):
            await until_answered(lambda user_id=user_id, role=role: self._put_member(user_id, role))  # type: ignore[misc]
        give = GiveAppRequest(appkey=self._appkey, team_id=self._team_id, origin=_OPERATOR)
        await until_answered(lambda: self._accounts.GiveApp(give))
        self._answers.apps[self._appkey] = self._team_id

    async def _new_user(self) -> str:
        made = await until_answered(
            lambda: self._accounts.CreateUser(CreateUserRequest(login=self._new_name(), origin=_OPERATOR))
        )
        self._answers.users[made.user.user_id] = made.user
        return str(made.user.user_id)

    def _new_name(self) -> str:
        """Return a name that nothing has: that of a call without an answer may be taken."""
        self._names += 1
        return f"{self._appkey}-{self._names}"

    async def _put_member(self, user_id: str, role: "MemberRole.ValueType") -> None:
        self._answers.teams.pop(self._team_id, None)
        request = SetMemberRequest(team_id=self._team_id, user_id=user_id, role=role, origin=_OPERATOR)
        answer = await self._accounts.SetMember(request)
        roles = {member.user_id: member.role for member in answer.team.team.members}
        if roles.get(user_id, MEMBER_ROLE_UNSPECIFIED) != role:
            self._answers.errors.append(f"member {user_id} has the role {roles.get(user_id)} after {role} was set")
        self._note_team(answer.team)

    def _note_team(self, summary: TeamSummary) -> None:
        self._answers.teams[self._team_id] = summary.team

    async def _set_member(self) -> None:
        await self._put_member(self._author, self._random.choice((MEMBER_ROLE_SENDER, MEMBER_ROLE_APPROVER)))
        await self._read_team()

    async def _set_rules(self) -> None:
        self._answers.teams.pop(self._team_id, None)
        rules = ApprovalRules(above_devices=self._random.randrange(1000))
        request = UpdateTeamRequest(team_id=self._team_id, rules=rules, origin=_OPERATOR)
        answer = await self._accounts.UpdateTeam(request)
        if answer.team.team.rules != rules:
            self._answers.errors.append(f"team {self._team_id} has the rules {answer.team.team.rules} after {rules}")
        self._note_team(answer.team)
        await self._read_team()

    async def _read_team(self) -> None:
        wanted = self._answers.teams[self._team_id]
        if self._random.random() < _READ_BACK:
            found = await self._accounts.ListTeams(ListTeamsRequest(team=self._team_id))
            if [summary.team for summary in found.teams] != [wanted]:
                self._answers.errors.append(f"team {self._team_id} is read as {found.teams} after {wanted}")

    async def _rename(self) -> None:
        user_id = self._random.choice((self._author, self._approver))
        self._answers.users.pop(user_id, None)
        name = self._new_name()
        request = UpdateUserRequest(user_id=user_id, display_name=name, origin=Origin(actor=f"user/{user_id}"))
        answer = await self._accounts.UpdateUser(request)
        self._answers.users[user_id] = answer.user
        found = await self._accounts.GetUsers(GetUsersRequest(user_ids=[user_id]))
        names = [answer.user.display_name, *(user.display_name for user in found.users)]
        if names != [name, name]:
            self._answers.errors.append(f"user {user_id} has the names {names} after {name}")

    async def _create_token(self) -> None:
        request = CreateTokenRequest(
            team_id=self._team_id, name=self._new_name(), role=MEMBER_ROLE_VIEWER, origin=_OPERATOR
        )
        token_id = (await self._accounts.CreateToken(request)).token.token_id
        self._tokens.append(token_id)
        self._answers.tokens.add(token_id)

    async def _revoke_token(self) -> None:
        if self._tokens:
            token_id = self._tokens.pop()
            self._answers.tokens.discard(token_id)
            await self._accounts.RevokeToken(RevokeTokenRequest(token_id=token_id, origin=_OPERATOR))
            self._answers.revoked_tokens.add(token_id)

    async def _submit(self) -> None:
        """Submit a new draft, or the one that was not answered once more, under the same id."""
        if (request := self._unanswered) is None:
            request = SubmitDraftRequest(
                draft=self._content(), new_draft_id=event_id().hex(), origin=self._origin(self._author)
            )
        self._unanswered = request
        answer = await self._drafts.SubmitDraft(request)
        self._unanswered = None
        self._note_draft(request.new_draft_id, request.draft, answer.draft.draft)

    async def _change_draft(self) -> None:
        """Replace the content of a draft that waits, while somebody may approve it as it was.

        If the change is not answered, nobody decides on the draft any more.
        """
        if not self._waiting:
            return
        draft_id = self._waiting.pop(self._random.randrange(len(self._waiting)))
        before = self._answers.drafts.pop(draft_id)
        changes = [self._replace(draft_id, before)]
        if self._random.random() < _TWO_AT_ONCE:
            changes.append(self._decide_as(draft_id, "approved", before.digest))
        await _at_once(changes)

    async def _replace(self, draft_id: str, before: Draft) -> None:
        content, origin = self._content(draft_id), self._origin(self._author)
        request = SubmitDraftRequest(draft=content, replaced_digest=before.digest, origin=origin)
        if (answer := await _unless_conflicting(self._drafts.SubmitDraft(request))) is not None:
            self._note_draft(draft_id, content, answer.draft.draft)

    def _note_draft(self, draft_id: str, content: Draft, answered: Draft) -> None:
        if (answered.draft_id, answered.task, answered.body_json) != (draft_id, content.task, content.body_json):
            self._answers.errors.append(f"draft {draft_id} was answered with another content")
        self._answers.drafts[draft_id] = answered
        self._waiting.append(draft_id)

    async def _decide(self) -> None:
        """Let one person decide on a draft that waits, or two at once.

        Where one is not answered, somebody decides once more later, or sees that it was decided.
        """
        if not self._waiting:
            return
        draft_id = self._random.choice(self._waiting)
        decisions = [self._random.choice(("approved", "approved", "rejected", "withdrawn"))]
        decisions += ["withdrawn"] if self._random.random() < _TWO_AT_ONCE else []
        digest = self._answers.drafts[draft_id].digest
        await _at_once([self._decide_as(draft_id, decision, digest) for decision in decisions])
        self._waiting.remove(draft_id)

    async def _decide_as(self, draft_id: str, decision: str, digest: bytes) -> None:
        """Decide on the draft with this content, unless it has expired, or a change or another decision came first."""
        request = DecideDraftRequest(draft_id=draft_id, origin=self._origin(self._approver))
        match decision:
            case "approved":
                request.approved.CopyFrom(DraftApproved(digest=digest))
            case "rejected":
                request.rejected.CopyFrom(DraftRejected(reason="not now"))
            case _:
                request.withdrawn.CopyFrom(DraftWithdrawn())
        if (answer := await _unless_conflicting(self._drafts.DecideDraft(request))) is None:
            return
        if (other := self._answers.decisions.get(draft_id)) is not None:
            self._answers.errors.append(f"draft {draft_id} was answered as {other} and as {decision}")
        self._answers.decisions[draft_id] = decision
        statuses = [answer.draft.status]
        if self._random.random() < _READ_BACK:
            found = await self._drafts.GetDrafts(GetDraftsRequest(draft_ids=[draft_id]))
            statuses += [draft.status for draft in found.drafts] or [DraftStatus.DRAFT_STATUS_UNSPECIFIED]
        if not set(statuses) <= set(STATUSES[decision]):
            self._answers.errors.append(f"draft {draft_id} has the statuses {statuses} after it was {decision}")

    def _content(self, draft_id: str = "") -> Draft:
        """Return a draft of a push that is timed or not."""
        push = self._new_push(self._appkey)
        due_ms = self._random.choice((0, self._clock.now_ms() + self._random.randrange(1000, _DUE_MS)))
        return Draft(
            draft_id=draft_id,
            team_id=self._team_id,
            body_json=b"{}",
            task=CreateTask(pushes=[push], due_ms=due_ms),
            is_broadcast=push.audience.HasField("everyone"),
            estimated_devices=self._random.randrange(1000),
        )

    def _origin(self, user_id: str) -> Origin:
        return Origin(interface="console", actor=f"user/{user_id}")


async def _at_once(changes: Iterable[Awaitable[None]]) -> None:
    """Make these changes at the same time; raise the error of the first that failed once all have ended."""
    for failed in await asyncio.gather(*changes, return_exceptions=True):
        if failed is not None:
            raise failed


async def _unless_conflicting(answering: Awaitable[Result]) -> Result | None:
    """Return the answer; None if the draft has expired, or another call has changed it or decided on it."""
    try:
        return await answering
    except ConflictError as error:
        if not any(text in str(error) for text in ("does not wait any more", "the draft was changed")):
            raise
        return None
