"""What sends approved drafts: whatever becomes of the call that approved one, and across crashes, each once."""

import asyncio
from collections.abc import Sequence

import pytest

from services.log.port import NewRecord, Partition
from testkit.faults.crashing_log import records_of
from tests.services.accounts.conftest import AccountsHarness
from tests.services.accounts.drafts.test_decide import WAITING, commands, new_team, status, until_sent


async def test_a_draft_is_sent_though_the_call_that_approved_it_was_given_up(
    harness: AccountsHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    append, begun, may_go_on = harness.log.append, asyncio.Event(), asyncio.Event()

    async def append_slowly(new_records: Sequence[NewRecord]) -> Sequence[int]:
        begun.set()
        await may_go_on.wait()
        return await append(new_records)

    async with harness.running():
        team = await new_team(harness)
        draft = await harness.submit(team.author, team.team_id)
        monkeypatch.setattr(harness.log, "append", append_slowly)
        approving = asyncio.create_task(harness.approve(team.approver, draft))
        await begun.wait()
        approving.cancel()
        await asyncio.wait([approving])
        may_go_on.set()
        await until_sent(harness, draft.draft.draft_id)
    assert approving.cancelled()


@pytest.mark.parametrize(
    ("topic", "kept", "sent_commands"),
    [("drafts", 0, 0), ("drafts", 1, 1), ("task-commands", 0, 1), ("task-commands", 1, 2)],
    ids=["before the approval", "after the approval", "before the command", "after the command"],
)
async def test_a_crash_loses_no_approved_draft_and_sends_none_under_two_keys(
    harness: AccountsHarness, topic: str, kept: int, sent_commands: int
) -> None:
    """The process dies in the append of the approval or of the command, before or after the log has it."""
    async with harness.running():
        team = await new_team(harness)
        draft = await harness.submit(team.author, team.team_id)
        harness.log.kill_at = lambda new_record: new_record.topic == topic
        harness.log.kept_records = kept
        approving = asyncio.create_task(harness.approve(team.approver, draft))
        await harness.log.died.wait()
        await asyncio.gather(approving, return_exceptions=True)
    harness.log.restart()
    harness.clock.move(10)
    async with harness.running():
        if sent_commands:
            await until_sent(harness, draft.draft.draft_id)
        sent = [command.SerializeToString() for command in await commands(harness)]
        assert len(sent) == sent_commands
        assert len(set(sent)) <= 1
        if not sent_commands:
            assert await status(harness, draft.draft.draft_id) == WAITING
    assert harness.digest() == await harness.rebuilt_digest()


async def test_the_command_has_the_draft_id_as_its_key(harness: AccountsHarness) -> None:
    """The key chooses the partition: a repeated command lies in the same one, where scheduling recognises it."""
    async with harness.running():
        team = await new_team(harness)
        draft = await harness.submit(team.author, team.team_id)
        await harness.approve(team.approver, draft)
        await until_sent(harness, draft.draft.draft_id)
    found = [r for n in range(4) for r in await records_of(harness.log, Partition("task-commands", n))]
    assert [record.key for record in found] == [draft.draft.draft_id.encode()]
