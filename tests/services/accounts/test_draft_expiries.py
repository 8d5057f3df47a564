"""The facts of drafts that expire: one each, at their time, also after a crash; none for those that were decided."""

import asyncio
from typing import Any

import pytest

from protos.accounts.v1.drafts_pb2 import ListDraftsRequest, StoredDraft
from services.accounts.drafts.expiries import MAX_LATE_MS
from services.errors import ConflictError
from testkit.waiting import until
from tests.services.accounts.conftest import START_MS, AccountsHarness, push_draft
from tests.services.accounts.drafts.test_decide import EXPIRED, new_team, status, until_sent

WAITS_S = 600


async def until_noted(harness: AccountsHarness, *drafts: StoredDraft) -> list[Any]:
    """Return the facts of expired drafts once these have one."""
    ids = {draft.draft.draft_id for draft in drafts}

    async def found() -> list[Any] | None:
        facts = await harness.facts("drafts", "expired")
        return facts if ids <= {fact.draft_id for fact in facts} else None

    return await until(found)


async def test_an_expired_draft_is_noted_once_at_its_time(harness: AccountsHarness) -> None:
    async with harness.running():
        team = await new_team(harness)
        timed = await harness.submit(team.author, team.team_id, push_draft(due_ms=START_MS + 60_000))
        short = await harness.submit(team.author, team.team_id, expires_in_s=WAITS_S)
        approved = await harness.submit(team.author, team.team_id, expires_in_s=WAITS_S)
        await harness.approve(team.approver, approved)
        await until_sent(harness, approved.draft.draft_id)
        harness.clock.move(60)
        (fact,) = await until_noted(harness, timed)
        assert (fact.expired.expires_ms, fact.meta.time_ms) == (START_MS + 60_000, START_MS + 60_000)
        assert not fact.meta.origin.actor
        harness.clock.move(WAITS_S - 61)
        changed = push_draft("1000000001", "later", draft_id=short.draft.draft_id)
        await harness.submit(team.author, team.team_id, changed, expires_in_s=WAITS_S)
        last = await harness.submit(team.author, team.team_id, expires_in_s=60)
        harness.clock.move(60)
        await until_noted(harness, last)
        harness.clock.move(WAITS_S)
        facts = await until_noted(harness, short)
        assert [fact.draft_id for fact in facts] == [each.draft.draft_id for each in (timed, last, short)]
        with pytest.raises(ConflictError, match="it is expired"):
            await harness.approve(team.approver, short)
        listing = ListDraftsRequest(team_ids=[team.team_id], limit=10)
        listed = {each.draft.draft_id: each for each in (await harness.drafts.ListDrafts(listing)).drafts}
        of_short = listed[short.draft.draft_id]
        assert (of_short.status, of_short.decided_by, of_short.decided_ms) == (EXPIRED, "", 0)
    assert harness.digest() == await harness.rebuilt_digest()


@pytest.mark.parametrize("kept", [0, 1], ids=["before the fact", "after the fact"])
async def test_a_crash_neither_loses_nor_repeats_the_fact(harness: AccountsHarness, kept: int) -> None:
    async with harness.running():
        team = await new_team(harness)
        draft = await harness.submit(team.author, team.team_id, expires_in_s=WAITS_S)
        harness.log.kill_at = lambda new_record: new_record.topic == "drafts"
        harness.log.kept_records = kept
        harness.clock.move(WAITS_S)
        await asyncio.wait_for(harness.log.died.wait(), 60)
    harness.log.restart()
    async with harness.running():
        other = await harness.submit(team.author, team.team_id, expires_in_s=1)
        harness.clock.move(1)
        facts = await until_noted(harness, draft, other)
        assert [fact.draft_id for fact in facts] == [draft.draft.draft_id, other.draft.draft_id]
    assert harness.digest() == await harness.rebuilt_digest()


async def test_a_start_notes_the_expiries_of_the_week_before(harness: AccountsHarness) -> None:
    async with harness.running():
        team = await new_team(harness)
        old = await harness.submit(team.author, team.team_id, expires_in_s=WAITS_S)
        late = await harness.submit(team.author, team.team_id, expires_in_s=WAITS_S + 1)
    harness.clock.move(WAITS_S + MAX_LATE_MS / 1000)
    async with harness.running():
        (fact,) = await until_noted(harness, late)
        assert fact.expired.expires_ms == late.draft.expires_ms
        assert await status(harness, old.draft.draft_id) == EXPIRED
