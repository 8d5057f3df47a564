"""Drafts: approval by a second person, of exactly what is sent, once, also across crashes."""

from typing import Any

import pytest

from protos.accounts.v1.accounts_pb2 import MemberRole
from protos.accounts.v1.drafts_pb2 import (
    DecideDraftRequest,
    DraftApproved,
    DraftRejected,
    DraftStatus,
    DraftWithdrawn,
    GetDraftsRequest,
    ListDraftsRequest,
    SubmitDraftRequest,
)
from protos.accounts.v1.service_pb2 import CreateTokenRequest, GiveAppRequest, UserSummary
from protos.push.v1.push_pb2 import SendPush
from protos.runtime.v1.log_pb2 import Origin
from protos.scheduling.v1.scheduling_pb2 import Claim, CreateTask, TaskCommand
from services.errors import CarillonError, ConflictError, PermissionDeniedError
from testkit.waiting import until
from tests.services.accounts.conftest import APP, OPERATOR, OTHER_APP, START_MS, AccountsHarness, origin_of, push_draft

WAITING, REJECTED = DraftStatus.DRAFT_STATUS_WAITING, DraftStatus.DRAFT_STATUS_REJECTED
SENT, EXPIRED = DraftStatus.DRAFT_STATUS_SENT, DraftStatus.DRAFT_STATUS_EXPIRED


class Team:
    """A team with an author and two approvers."""

    def __init__(self, author: UserSummary, approver: UserSummary, other: UserSummary, team_id: str) -> None:
        self.author, self.approver, self.other, self.team_id = author, approver, other, team_id


async def new_team(harness: AccountsHarness) -> Team:
    author, approver, other = [await harness.user(login) for login in ("author", "approver", "other")]
    members = ((author, "sender"), (approver, "approver"), (other, "approver"))
    return Team(author, approver, other, await harness.team(*members))


async def status(harness: AccountsHarness, draft_id: str) -> int:
    (draft,) = (await harness.drafts.GetDrafts(GetDraftsRequest(draft_ids=[draft_id, "unknown"]))).drafts
    return int(draft.status)


async def until_sent(harness: AccountsHarness, draft_id: str) -> None:
    async def is_sent() -> bool:
        return await status(harness, draft_id) == SENT

    await until(is_sent)


async def commands(harness: AccountsHarness) -> list[TaskCommand]:
    return await harness.facts("task-commands")


async def test_an_approved_draft_is_sent_once_as_it_was_approved(harness: AccountsHarness) -> None:
    async with harness.running():
        team = await new_team(harness)
        draft = await harness.submit(team.author, team.team_id)
        assert (draft.status, draft.draft.expires_ms) == (WAITING, START_MS + 3 * 86_400_000)
        harness.clock.move(60)
        answer = await harness.approve(team.approver, draft)
        assert answer.decided_by == f"user/{team.approver.user_id}"
        await until_sent(harness, draft.draft.draft_id)
        (command,) = await commands(harness)
        assert command.task_key == draft.draft.draft_id
        assert list(command.create.pushes) == list(push_draft().task.pushes)
        assert command.create.due_ms == START_MS + 60_000
        assert command.meta.origin.actor == f"user/{team.author.user_id}"
        (approved,) = await harness.facts("drafts", "approved")
        assert approved.meta.origin.actor == f"user/{team.approver.user_id}"
        assert approved.approved.digest == draft.draft.digest
        with pytest.raises(ConflictError, match="it is sent"):
            await harness.approve(team.other, draft)
        assert len(await commands(harness)) == 1


async def test_nobody_approves_what_they_wrote_and_only_people_with_the_role_approve(
    harness: AccountsHarness,
) -> None:
    async with harness.running():
        team = await new_team(harness)
        draft = await harness.submit(team.approver, team.team_id)
        stranger = await harness.user("stranger", administrator=False)
        for person in (team.approver, team.author, stranger):
            with pytest.raises(PermissionDeniedError):
                await harness.approve(person, draft)
        request = DecideDraftRequest(
            draft_id=draft.draft.draft_id, approved=DraftApproved(digest=draft.draft.digest), origin=OPERATOR
        )
        with pytest.raises(PermissionDeniedError, match="only a person"):
            await harness.drafts.DecideDraft(request)
        administrator = await harness.user("root", administrator=True)
        await harness.approve(administrator, draft)


async def test_the_maker_of_an_api_token_does_not_approve_its_drafts(harness: AccountsHarness) -> None:
    async with harness.running():
        team = await new_team(harness)
        root = await harness.user("root", administrator=True)
        role = MemberRole.MEMBER_ROLE_APPROVER
        create = CreateTokenRequest(team_id=team.team_id, name="ci", role=role, origin=origin_of(root))
        token_id = (await harness.accounts.CreateToken(create)).token.token_id
        content = push_draft()
        content.team_id = team.team_id
        by_token = Origin(interface="console", actor=f"token/{token_id}")
        draft = (await harness.drafts.SubmitDraft(SubmitDraftRequest(draft=content, origin=by_token))).draft
        assert list(draft.draft.authors) == [f"token/{token_id}", f"user/{root.user_id}"]
        with pytest.raises(PermissionDeniedError, match="wrote or changed"):
            await harness.approve(root, draft)
        request = DecideDraftRequest(
            draft_id=draft.draft.draft_id, approved=DraftApproved(digest=draft.draft.digest), origin=by_token
        )
        with pytest.raises(PermissionDeniedError):
            await harness.drafts.DecideDraft(request)
        await harness.approve(team.approver, draft)


async def test_a_changed_draft_needs_an_approval_of_its_own(harness: AccountsHarness) -> None:
    async with harness.running():
        team = await new_team(harness)
        draft = await harness.submit(team.author, team.team_id)
        changed = push_draft(content="other words", draft_id=draft.draft.draft_id)
        again = await harness.submit(team.other, team.team_id, changed)
        with pytest.raises(ConflictError, match="look at it again"):
            await harness.approve(team.approver, draft)
        with pytest.raises(PermissionDeniedError, match="wrote or changed"):
            await harness.approve(team.other, again)
        await harness.approve(team.approver, again)
        await until_sent(harness, draft.draft.draft_id)
        (command,) = await commands(harness)
        assert command.create.pushes[0].message.content == "other words"
        assert [(kept.draft.version, kept.draft.changed_by) for kept in (draft, again)] == [
            (1, ""),
            (2, f"user/{team.other.user_id}"),
        ]
        late = push_draft(content="too late", draft_id=draft.draft.draft_id)
        with pytest.raises(ConflictError, match="it is sent"):
            await harness.submit(team.author, team.team_id, late)


async def test_two_people_who_change_a_draft_at_once_do_not_overwrite_each_other(harness: AccountsHarness) -> None:
    async with harness.running():
        team = await new_team(harness)
        draft = await harness.submit(team.author, team.team_id)

        async def change(by: UserSummary, words: str) -> Any:
            changed = push_draft(draft_id=draft.draft.draft_id)
            changed.body_json = words.encode()
            return await harness.submit(by, team.team_id, changed, replaced_digest=draft.draft.digest)

        first = await change(team.author, "first")
        assert await change(team.author, "first") == first
        for by, words in ((team.author, "second"), (team.other, "first")):
            with pytest.raises(ConflictError, match="changed meanwhile"):
                await change(by, words)
        assert len(await harness.facts("drafts", "submitted")) == 2
        await harness.approve(team.other, first)


async def test_drafts_are_rejected_withdrawn_and_expire(harness: AccountsHarness) -> None:
    async with harness.running():
        team = await new_team(harness)

        async def decide(draft: Any, by: UserSummary, **decision: Any) -> Any:
            request = DecideDraftRequest(draft_id=draft.draft.draft_id, origin=origin_of(by), **decision)
            return (await harness.drafts.DecideDraft(request)).draft

        rejected = await harness.submit(team.author, team.team_id)
        with pytest.raises(PermissionDeniedError):
            await decide(rejected, team.author, rejected=DraftRejected())
        answer = await decide(rejected, team.approver, rejected=DraftRejected(reason="wrong day"))
        assert (answer.status, answer.reason) == (REJECTED, "wrong day")
        withdrawn = await harness.submit(team.author, team.team_id)
        await decide(withdrawn, team.author, withdrawn=DraftWithdrawn())
        timed = await harness.submit(team.author, team.team_id, push_draft(due_ms=START_MS + 60_000))
        short = await harness.submit(team.author, team.team_id, expires_in_s=90)
        harness.clock.move(60)
        for draft, told in ((rejected, "rejected"), (withdrawn, "withdrawn"), (timed, "expired")):
            with pytest.raises(ConflictError, match=f"it is {told}"):
                await harness.approve(team.approver, draft)
        waiting = ListDraftsRequest(team_ids=[team.team_id, "x"], waiting_only=True, limit=10)
        (listed,) = (await harness.drafts.ListDrafts(waiting)).drafts
        assert (listed.draft.draft_id, listed.draft.body_json) == (short.draft.draft_id, b"")
        harness.clock.move(30)
        assert await status(harness, short.draft.draft_id) == EXPIRED
        assert not (await harness.drafts.ListDrafts(waiting)).drafts
        everything = ListDraftsRequest(team_ids=[team.team_id], limit=3, offset=1)
        assert len((await harness.drafts.ListDrafts(everything)).drafts) == 3
        assert await commands(harness) == []


async def test_a_timed_draft_keeps_its_time(harness: AccountsHarness) -> None:
    async with harness.running():
        team = await new_team(harness)
        draft = await harness.submit(team.author, team.team_id, push_draft(due_ms=START_MS + 600_000))
        await harness.approve(team.approver, draft)
        await until_sent(harness, draft.draft.draft_id)
        assert [command.create.due_ms for command in await commands(harness)] == [START_MS + 600_000]


@pytest.mark.parametrize(
    ("task", "told"),
    [
        (CreateTask(), "at least one push"),
        (CreateTask(pushes=[SendPush(appkey=APP)]), "an audience"),
        (CreateTask(pushes=push_draft(OTHER_APP).task.pushes), "does not belong to the team"),
        (CreateTask(pushes=push_draft().task.pushes, at_once=True), "under its own key"),
        (CreateTask(pushes=push_draft().task.pushes, claim=Claim(key=b"k")), "under its own key"),
        (push_draft(content="x" * 800_000).task, "send to fewer tokens"),
    ],
    ids=["no push", "no audience", "another's app", "at once", "claim", "too large"],
)
async def test_a_draft_that_could_not_be_sent_is_refused(harness: AccountsHarness, task: CreateTask, told: str) -> None:
    async with harness.running():
        team = await new_team(harness)
        content = push_draft()
        content.task.CopyFrom(task)
        with pytest.raises(CarillonError, match=told):
            await harness.submit(team.author, team.team_id, content)
        assert await harness.facts("drafts") == []


async def test_an_app_that_left_the_team_is_not_sent_to(harness: AccountsHarness) -> None:
    async with harness.running():
        team = await new_team(harness)
        draft = await harness.submit(team.author, team.team_id)
        await harness.accounts.GiveApp(GiveAppRequest(appkey=APP, origin=OPERATOR))
        with pytest.raises(ConflictError, match="does not belong"):
            await harness.approve(team.approver, draft)
