"""Sends one app's tasks that fell due, and tries again those that could not be sent."""

import asyncio
from dataclasses import dataclass

from protos.accounts.v1.drafts_pb2 import AdmitTaskRequest, AdmitTaskResponse
from protos.accounts.v1.drafts_pb2_grpc import DraftsServiceStub
from protos.push.v1.push_pb2 import SendPush
from protos.scheduling.v1.scheduling_pb2 import TaskFact
from services.domain.accounts import names_account
from services.domain.command_writer import Command, CommandWriter, push_command
from services.domain.push_capacity import PushCapacity
from services.domain.recorded_reasons import AttemptsFailed, FixedReason
from services.domain.sealing import ended_by_erasure
from services.domain.token_resolver import TokenAndAliasResolver
from services.domain.topics import TASKS
from services.errors import (
    BusyError,
    CarillonError,
    ConflictError,
    DeadlineError,
    InputError,
    NotFoundError,
    PermissionDeniedError,
    UnavailableError,
)
from services.log.batcher import Batcher
from services.process.clock import Clock, wait_for_first
from services.process.crashpoint import Point, reached
from services.process.logs import logger
from services.process.metrics import TASKS_FAILED, TASKS_FIRED
from services.replica.follower import Follower
from services.replica.peers import Peers
from services.replica.store import Fact
from services.scheduling import decide
from services.scheduling.state import StoredTask
from services.scheduling.store import BEFORE_ALL, TaskTable

RETRY_MS = 1000
"""Delay before a task that could not be sent is tried again, ms; from the second failure on each doubles it."""

MAX_RETRY_MS = 60_000
"""Upper bound of that delay, ms."""

MAX_FAILURES = 16
"""Failures after which a task ends as failed; the delays add up to ten minutes, for the registry to recover."""

CONCURRENT_TASKS = 100
"""Tasks of one app that are resolved and appended at the same time."""

MAX_RETRIES = 10_000
"""Upper bound of an app's tasks that are tried again; beyond it no further task is tried before one of them is sent."""


ADMISSION_S = 30.0
"""Deadline in seconds for accounts to say whether a due task needs an approval: targeting counts its devices."""


class Approvals:
    """Asks accounts, as a task of a person or of an API token falls due, whether it needs an approval by now.

    When the task was made, its audience may have been smaller, the rules looser, and its sender may have sent less
    since. App servers' tasks are under no approval rules. A task that is sent at once was admitted just now.
    """

    def __init__(self, peers: Peers) -> None:
        self._peers = peers

    async def draft_of(self, task: StoredTask) -> str:
        """Return the draft that the task has become because it needs an approval; "" for one that may be sent.

        UnavailableError: accounts cannot tell at present, so the task waits. InputError: its audience can never be
        resolved.
        """
        scheduled, origin = task.scheduled.scheduled, task.scheduled.meta.origin
        if scheduled.at_once or not names_account(origin):
            return ""
        request = AdmitTaskRequest(task_key=task.task_key, pushes=scheduled.pushes, origin=origin)
        try:
            drafts = DraftsServiceStub(self._peers.all("accounts")[0])
            answer: AdmitTaskResponse = await drafts.AdmitTask(request, timeout=ADMISSION_S)
        except InputError:
            raise
        except CarillonError as error:
            raise UnavailableError(f"whether the task needs an approval is not known: {error}") from error
        return answer.draft_id


@dataclass(slots=True)
class _Retry:
    """When a task is tried again, and how many of its attempts have failed."""

    at_ms: int
    failures: int


class AppTaskSender:
    """Sends the app's tasks in the order of their due times, until none is left.

    A task of an account that needs an approval by now is not sent: it ends, and waits as a draft; see Approvals. While
    the registry or the log does not answer or refuses this process, or too many of the app's pushes wait in delivery,
    tasks wait; a page of tasks none of which could be sent ends a pass, so that a registry that is down is not asked
    about each of a million tasks again and again. A task that is refused ends as failed at once. Any other error is a
    failure, because it does not say whether the task has caused it; a task with MAX_FAILURES of them ends as failed.
    Failures are counted anew in each tenure.
    """

    def __init__(
        self,
        follower: Follower,
        tasks: TaskTable,
        resolver: TokenAndAliasResolver,
        capacity: PushCapacity,
        approvals: Approvals,
        writer: CommandWriter,
        facts: Batcher[Fact, None],
        clock: Clock,
        appkey: str,
    ) -> None:
        self._follower = follower
        self._tasks = tasks
        self._resolver = resolver
        self._capacity = capacity
        self._approvals = approvals
        self._writer = writer
        self._facts = facts
        self._clock = clock
        self._appkey = appkey
        self._retries: dict[str, _Retry] = {}
        self._paused_until_ms: int | None = None
        self._has_left_out = False
        self._woken = asyncio.Event()

    def wake_up(self) -> None:
        """Look for tasks that fell due meanwhile."""
        self._woken.set()

    async def run(self) -> None:
        """Return once no task is left to send and none is tried again."""
        while self._woken.is_set() or self._retries:
            next_retry_ms = min((retry.at_ms for retry in self._retries.values()), default=None)
            await wait_for_first(self._clock, self._paused_until_ms or next_retry_ms, self._woken)
            self._woken.clear()
            self._has_left_out = False
            await self._send_all()
            if self._has_left_out and not self._retries:
                self._woken.set()

    async def _send_all(self) -> None:
        after = BEFORE_ALL
        self._paused_until_ms = None
        while True:
            places = await self._follower.query(self._tasks.fell_due, self._appkey, after, CONCURRENT_TASKS)
            if not places:
                return
            after = places[-1]
            now_ms = self._clock.now_ms()
            chosen = [place.task_key for place in places if self._may_send(place.task_key, now_ms)]
            if chosen and not await self._send_page(chosen):
                self._paused_until_ms = self._clock.now_ms() + RETRY_MS
                return

    def _may_send(self, task_key: str, now_ms: int) -> bool:
        retry = self._retries.get(task_key)
        if retry is not None:
            return retry.at_ms <= now_ms
        is_left_out = len(self._retries) >= MAX_RETRIES
        self._has_left_out |= is_left_out
        return not is_left_out

    async def _send_page(self, task_keys: list[str]) -> bool:
        """Send these tasks and write the facts that follow; return whether one was sent or ended as failed."""
        tasks = await self._follower.query(self._tasks.find_all, task_keys)
        made = await asyncio.gather(*(self._send(task) for task in tasks))
        facts = [
            Fact(TASKS, task.partition, task.task_key.encode(), fact)
            for task, fact in zip(tasks, made, strict=True)
            if fact is not None
        ]
        if not facts:
            return False
        await self._facts.put(facts, 0)
        for fact in facts:
            self._retries.pop(fact.message.task_key, None)
        held = sum(bool(fact.message.failed.draft_id) for fact in facts)
        failed = sum(fact.message.HasField("failed") for fact in facts) - held
        TASKS_FAILED.inc(failed)
        TASKS_FIRED.inc(len(facts) - failed - held)
        return True

    async def _send(self, task: StoredTask) -> TaskFact | None:
        """Append the task's pushes; return the fact that follows, None if the task must be tried again."""
        try:
            if draft_id := await self._approvals.draft_of(task):
                logger.info("a timed task waits for an approval as a draft", task=task.task_key, draft=draft_id)
                return decide.held_as_draft(task.task_key, draft_id, self._clock.now_ms())
            pushes = task.scheduled.scheduled.pushes
            if pushes and all(map(ended_by_erasure, pushes)):
                return self._failed(task, FixedReason.ERASED)
            for push in task.scheduled.scheduled.pushes:
                await self._capacity.take(push.appkey, push.ByteSize())
            commands = await self._commands(task)
            reached(Point.TASK_SENDING)
            await self._writer.append(commands)
            reached(Point.TASK_SENT)
        except (InputError, NotFoundError, ConflictError) as error:
            return self._failed(task, str(error))
        except (BusyError, DeadlineError, PermissionDeniedError, UnavailableError) as error:
            logger.warning("a timed task is not sent yet; trying again", task=task.task_key, error=str(error))
            self._try_again(task, is_failure=False)
            return None
        except CarillonError as error:
            logger.warning("a timed task could not be sent; trying again", task=task.task_key, error=str(error))
            failures = self._try_again(task, is_failure=True)
            if failures < MAX_FAILURES:
                return None
            return self._failed(task, str(AttemptsFailed(failures, str(error))))
        return decide.sent(task.task_key, self._clock.now_ms())

    def _try_again(self, task: StoredTask, *, is_failure: bool) -> int:
        """Try the task again later; return how many attempts have failed so far."""
        known = self._retries.get(task.task_key)
        failures = (known.failures if known else 0) + is_failure
        delay_ms = min(RETRY_MS << (failures - 1), MAX_RETRY_MS) if is_failure else RETRY_MS
        self._retries[task.task_key] = _Retry(self._clock.now_ms() + delay_ms, failures)
        return failures

    def _failed(self, task: StoredTask, reason: str) -> TaskFact:
        logger.error("a timed task failed", task=task.task_key, app=self._appkey, reason=reason)
        return decide.failed(task.task_key, reason, self._clock.now_ms())

    async def _commands(self, task: StoredTask) -> list[Command]:
        try:
            pushes = [push for push in task.scheduled.scheduled.pushes if not ended_by_erasure(push)]
            return [await self._push_command(task, push) for push in pushes]
        except CarillonError:
            raise
        except Exception as error:
            logger.error("a timed task cannot be made into pushes", task=task.task_key, exc_info=error)
            raise CarillonError("internal error") from error

    async def _push_command(self, task: StoredTask, push: SendPush) -> Command:
        resolved = SendPush()
        resolved.CopyFrom(push)
        resolved.audience.CopyFrom((await self._resolver.resolve(push.appkey, push.audience)).audience)
        return push_command(decide.push_command(task, resolved, self._clock.now_ms()))
