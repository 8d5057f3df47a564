"""A timed push of an account is decided again when it falls due: one that needs an approval by then is not sent."""

from typing import Any

import pytest

from protos.accounts.v1.drafts_pb2 import AdmitTaskRequest, AdmitTaskResponse
from protos.accounts.v1.drafts_pb2_grpc import DraftsServiceServicer, add_DraftsServiceServicer_to_server
from protos.runtime.v1.log_pb2 import Origin
from services.domain.recorded_reasons import ApprovalNeeded
from services.errors import CarillonError, DeadlineError, PermissionDeniedError, UnavailableError
from testkit.waiting import until, until_holds
from tests.services.scheduling.conftest import SchedulingHarness, push
from tests.services.scheduling.test_timer import assert_replays, assert_sent_once, is_fact, is_push

ACCOUNT = Origin(interface="console", actor="user/1")
DRAFT = "0123456789abcdef0123456789abcdef"


class ScriptedAccounts(DraftsServiceServicer):
    """Accounts that answers with the draft that a test names, "" for a task that may be sent, or with its error."""

    def __init__(self) -> None:
        self.draft_id = ""
        self.error: CarillonError | None = None
        self.asked: list[AdmitTaskRequest] = []

    async def AdmitTask(self, request: AdmitTaskRequest, context: Any) -> AdmitTaskResponse:
        self.asked.append(request)
        if self.error is not None:
            raise self.error
        return AdmitTaskResponse(draft_id=self.draft_id)


def accounts_of(harness: SchedulingHarness) -> ScriptedAccounts:
    accounts = ScriptedAccounts()  # type: ignore[abstract]
    add_DraftsServiceServicer_to_server(accounts, harness.accounts)  # type: ignore[arg-type]
    return accounts


async def test_a_task_of_an_account_that_needs_an_approval_by_now_is_not_sent_and_names_its_draft(
    harness: SchedulingHarness,
) -> None:
    accounts = accounts_of(harness)
    accounts.draft_id = DRAFT
    async with harness.running():
        await harness.create("t", push(1), origin=ACCOUNT)
        harness.clock.move(60)

        async def is_over() -> bool:
            return await harness.status("t") == "FAILED"

        await until(is_over)
        (failed,) = await harness.facts("failed")
        assert (failed.failed.draft_id, failed.failed.reason) == (DRAFT, str(ApprovalNeeded(DRAFT)))
        (asked,) = accounts.asked
        assert (asked.task_key, asked.pushes[0].msgid, asked.origin) == ("t", 1, ACCOUNT)
        assert await harness.sent_pushes() == []
    await assert_replays(harness)


async def test_only_tasks_of_accounts_are_decided_and_one_that_may_be_sent_is_sent(harness: SchedulingHarness) -> None:
    accounts = accounts_of(harness)
    async with harness.running():
        await harness.create("of an app server", push(1))
        await harness.create("of an account", push(2), origin=ACCOUNT)
        await harness.create("of an operator", push(3), origin=Origin(interface="console"))
        harness.clock.move(60)
        await harness.until_sent(3)
        for number, key in enumerate(("of an app server", "of an account", "of an operator"), start=1):
            await assert_sent_once(harness, key, number)
        assert [asked.task_key for asked in accounts.asked] == ["of an account"]


@pytest.mark.parametrize(
    "error", [UnavailableError("x"), DeadlineError("x"), PermissionDeniedError("x"), CarillonError("an older version")]
)
async def test_while_it_cannot_be_decided_the_task_waits_however_long(
    harness: SchedulingHarness, error: CarillonError
) -> None:
    accounts = accounts_of(harness)
    accounts.error = error
    async with harness.running():
        await harness.create("t", push(1), origin=ACCOUNT)
        harness.clock.move(60)
        for attempts in range(1, 25):
            await until_holds(lambda attempts=attempts: len(accounts.asked) >= attempts)  # type: ignore[misc]
            harness.clock.move(60)
        assert await harness.sent_pushes() == []
        accounts.error = None
        for _ in range(3):
            harness.clock.move(60)
        await harness.until_sent(1)
        await assert_sent_once(harness, "t", 1)


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("held", [False, True])
async def test_a_kill_around_the_outcome_of_a_decided_task_changes_nothing(
    harness: SchedulingHarness, after: bool, held: bool
) -> None:
    accounts = accounts_of(harness)
    accounts.draft_id = DRAFT if held else ""
    harness.log.when, harness.log.after = (is_fact("failed") if held else is_push), after
    async with harness.running():
        await harness.create("t", push(1), origin=ACCOUNT)
        harness.clock.move(60)
        await harness.log.died.wait()
    harness.log.died.clear()
    async with harness.running():
        if held:

            async def is_over() -> bool:
                return await harness.status("t") == "FAILED"

            await until(is_over)
            assert (await harness.sent_pushes(), len(await harness.facts("failed"))) == ([], 1)
        else:
            await harness.until_sent(1)
            await assert_sent_once(harness, "t", 1)
    await assert_replays(harness)
