"""The table of drafts: its lists, and the deletion of drafts long after they ended."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from protos.accounts.v1.drafts_pb2 import (
    Draft,
    DraftApproved,
    DraftExpired,
    DraftFact,
    DraftRejected,
    DraftSent,
    DraftSubmitted,
    DraftWithdrawn,
    ListDraftsRequest,
)
from protos.runtime.v1.log_pb2 import Meta
from services.accounts.drafts.store import ENDED_KEPT_MS, MAX_DELETED
from services.accounts.state import apply
from services.accounts.store import DDL, AccountTable
from services.replica.sqlite_store import SqliteStore
from tests.services.accounts.conftest import START_MS, AccountsHarness, push_draft
from tests.services.accounts.drafts.test_decide import new_team, until_sent

WAITS_MS = 1000


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    opened = SqliteStore(tmp_path / "accounts.sqlite", DDL)
    yield opened
    opened.close()


@pytest.fixture
def accounts(store: SqliteStore) -> AccountTable:
    return AccountTable(store.rows)


def submitted(draft_id: str, time_ms: int, content: str = "hello", team_id: str = "t") -> DraftFact:
    draft = Draft(team_id=team_id, created_ms=time_ms, expires_ms=time_ms + WAITS_MS)
    draft.MergeFrom(push_draft(content=content, draft_id=draft_id))
    return DraftFact(meta=Meta(time_ms=time_ms), draft_id=draft_id, submitted=DraftSubmitted(draft=draft))


def ended(kind: str, draft_id: str, time_ms: int) -> list[DraftFact]:
    """Return the facts that end a draft at a time; one that expires may have none."""
    meta = Meta(time_ms=time_ms)
    approved = DraftFact(meta=meta, draft_id=draft_id, approved=DraftApproved())
    return {
        "approved": [approved],
        "sent": [approved, DraftFact(meta=meta, draft_id=draft_id, sent=DraftSent())],
        "rejected": [DraftFact(meta=meta, draft_id=draft_id, rejected=DraftRejected())],
        "withdrawn": [DraftFact(meta=meta, draft_id=draft_id, withdrawn=DraftWithdrawn())],
        "expired": [],
        "noted as expired": [DraftFact(meta=Meta(time_ms=9 * time_ms), draft_id=draft_id, expired=DraftExpired())],
    }[kind]


def listed(accounts: AccountTable, now_ms: int, **asked: object) -> list[str]:
    request = ListDraftsRequest(team_ids=["t", "u"], limit=100)
    request.MergeFrom(ListDraftsRequest(**asked))  # type: ignore[arg-type]
    return [kept.draft.draft_id for kept in accounts.drafts(request, now_ms)]


@pytest.mark.parametrize("kind", ["sent", "rejected", "withdrawn", "expired", "noted as expired"])
def test_a_new_draft_deletes_those_that_ended_400_days_before(accounts: AccountTable, kind: str) -> None:
    facts = [submitted("old", 0), *ended(kind, "old", WAITS_MS)]
    facts += [submitted("young", 1), *ended("rejected", "young", WAITS_MS + 2)]
    for fact in facts:
        apply(accounts, fact)
    apply(accounts, submitted("just before", WAITS_MS + ENDED_KEPT_MS - 1))
    assert accounts.draft("old")
    apply(accounts, submitted("new", WAITS_MS + ENDED_KEPT_MS))
    assert accounts.draft("old") is None
    assert listed(accounts, 0) == ["new", "just before", "young"]


def test_an_approved_draft_is_kept_until_it_is_sent(accounts: AccountTable) -> None:
    for fact in (submitted("old", 0), *ended("approved", "old", 1), submitted("new", 9 * ENDED_KEPT_MS)):
        apply(accounts, fact)
    assert [kept.draft.draft_id for kept in accounts.approved(9)] == ["old"]
    apply(accounts, DraftFact(draft_id="old", sent=DraftSent()))
    apply(accounts, submitted("newer", 9 * ENDED_KEPT_MS))
    assert listed(accounts, 0) == ["new", "newer"]


def test_a_new_draft_deletes_a_bounded_number_the_first_ended_first(accounts: AccountTable) -> None:
    ids = [f"{number:03}" for number in range(MAX_DELETED + 2)]
    for number, draft_id in enumerate(reversed(ids)):
        apply(accounts, submitted(draft_id, number))
    apply(accounts, submitted("new", 2 * ENDED_KEPT_MS))
    assert [draft_id for draft_id in ids if accounts.draft(draft_id)] == ["000", "001"]
    apply(accounts, submitted("new", 2 * ENDED_KEPT_MS))
    assert listed(accounts, 0) == ["new"]


async def test_a_replay_deletes_the_same_drafts(harness: AccountsHarness) -> None:
    async with harness.running():
        team = await new_team(harness)
        sent, approved_late, expired = [await harness.submit(team.author, team.team_id) for _ in range(3)]
        await harness.approve(team.approver, sent)
        await until_sent(harness, sent.draft.draft_id)
        harness.clock.move(86_400)
        await harness.approve(team.approver, approved_late)
        await until_sent(harness, approved_late.draft.draft_id)
        harness.clock.move(ENDED_KEPT_MS // 1000 - 1)
        new = await harness.submit(team.author, team.team_id)
        asked = ListDraftsRequest(team_ids=[team.team_id], limit=10)
        left = {kept.draft.draft_id for kept in (await harness.drafts.ListDrafts(asked)).drafts}
        assert left == {each.draft.draft_id for each in (approved_late, expired, new)}
        assert new.draft.created_ms == START_MS + 86_400_000 + ENDED_KEPT_MS - 1000
    assert harness.digest() == await harness.rebuilt_digest()


def test_the_lists_are_sorted_searched_and_divided_into_pages(accounts: AccountTable) -> None:
    for number, draft_id in enumerate("abcdef"):
        content = "Sale" if number % 2 else "news"
        apply(accounts, submitted(draft_id, number, content, team_id="tux"[number % 3]))
    apply(accounts, submitted("a2", 0))
    apply(accounts, DraftFact(meta=Meta(time_ms=9), draft_id="e", rejected=DraftRejected()))
    assert listed(accounts, 0) == ["e", "d", "b", "a", "a2"]
    assert listed(accounts, 0, waiting_first=True) == ["d", "b", "a", "a2", "e"]
    assert listed(accounts, WAITS_MS + 1, waiting_first=True) == ["d", "e", "b", "a", "a2"]
    assert listed(accounts, WAITS_MS, waiting_only=True) == ["d", "b"]
    assert listed(accounts, 0, words="sALE") == ["d", "b"]
    assert listed(accounts, 0, offset=1, limit=2) == ["d", "b"]


@pytest.mark.parametrize("asked", [{}, {"waiting_first": True}, {"waiting_only": True}, {"words": "x"}])
def test_a_list_finds_its_page_without_reading_contents(
    store: SqliteStore, accounts: AccountTable, asked: dict[str, object]
) -> None:
    """The index has everything by which drafts are chosen and sorted; the contents of a page are read by key."""
    statements: list[str] = []
    store.rows.set_trace_callback(statements.append)
    listed(accounts, 0, **asked)
    store.rows.set_trace_callback(None)
    plan = [row[3] for row in store.rows.execute(f"EXPLAIN QUERY PLAN {statements[0]}")]
    assert any("USING COVERING INDEX drafts_of_teams" in step for step in plan), plan


def test_the_drafts_to_delete_are_found_by_an_index(store: SqliteStore, accounts: AccountTable) -> None:
    statements: list[str] = []
    store.rows.set_trace_callback(statements.append)
    apply(accounts, submitted("new", 1))
    store.rows.set_trace_callback(None)
    plan = [row[3] for row in store.rows.execute(f"EXPLAIN QUERY PLAN {statements[0]}")]
    assert any("USING INDEX drafts_ended" in step for step in plan), plan
