"""Tells people by mail about drafts: reads the log, stores the mails that follow, and sends each until it is taken."""

import asyncio
import random
from collections.abc import Callable, Collection, Sequence
from contextlib import aclosing
from functools import partial
from typing import Any

from protos.accounts.v1.drafts_pb2 import Draft, DraftFact
from services.domain.topics import DRAFTS, decode
from services.log.port import LOG_UNAVAILABLE, Log, Partition, Record, ends_of
from services.process import background
from services.process.clock import Clock, wait_for_first
from services.process.logs import logger
from services.process.metrics import NOTICES
from services.process.retries import retry_until_available
from services.process.worker_thread import WorkerThread
from services.replica.catch_up import read_until
from services.replica.dead_letters import UNUSABLE, leave_out
from services.webhooks.log_readers import EpochsFromOffset
from services.webhooks.notices.mails import AuthorLimit, Surroundings, mails_about, message_of, without_content
from services.webhooks.notices.smtp import AwayError, MailRefusal, SmtpTransport
from services.webhooks.notices.store import Mail, NoticeStore
from services.webhooks.settings import ROLE_NAME

FIRST_DELAY_MS = 60_000
MAX_DELAY_MS = 3_600_000
GIVEN_UP_MS = 24 * 3_600_000
"""How long after the fact a mail is tried."""

AT_ONCE = 50
"""Mails of one session with the server."""

_AGAIN_S = 1.0
_PARTITION = Partition(DRAFTS.name, 0)


class NoticeService:
    """Service that mails approvers and authors. It begins with what happens after its first start.

    The offset is stored together with the mails that follow from the records before it, and a mail is forgotten once
    the server has taken it. So a kill loses none, and may send one again, with the Message-ID that it had.
    Drafts beyond MAX_ASKED an hour of one author make no mails; a restart begins the hour anew.
    """

    name = "notices"

    def __init__(
        self,
        log: Log,
        store: NoticeStore,
        around: Surroundings,
        transport: SmtpTransport,
        sender: str,
        clock: Clock,
        jitter: random.Random,
    ) -> None:
        """`sender`: the header From of the mails."""
        self._log = log
        self._store = store
        self._around = around
        self._transport = transport
        self._sender = sender
        self._clock = clock
        self._jitter = jitter
        self._thread = WorkerThread("notices")
        self._waiting: dict[str, Draft] = {}
        self._limit = AuthorLimit()
        self._epochs = EpochsFromOffset()
        self._has_mails = asyncio.Event()
        self.has_begun = False
        """Whether it knows from which record on it tells of drafts."""

        self.attempts = 0
        """How many attempts to send a mail have ended, and are stored."""

    async def run(self, ready: asyncio.Event) -> None:
        ready.set()
        work = {"notices about drafts": self._follow, "mails of notices": self._send}
        tasks = [background.start_lasting(name, each) for name, each in work.items()]
        try:
            await asyncio.wait(tasks)
        finally:
            await _end(tasks)
            await asyncio.to_thread(self._thread.shutdown)
            self._store.close()

    # --- from the log to the store

    async def _follow(self) -> None:
        start = await self._begin()
        self.has_begun = True
        reader = await retry_until_available(
            LOG_UNAVAILABLE, lambda: self._log.open({_PARTITION: start}), role=ROLE_NAME
        )
        try:
            while True:
                await self._take(await retry_until_available(LOG_UNAVAILABLE, reader.read, role=ROLE_NAME))
        finally:
            await reader.close()

    async def _begin(self) -> int:
        """Return the offset to go on from. Without one, the drafts that wait are noted, and nobody is told of them."""
        self._epochs = EpochsFromOffset()
        end = (await ends_of(self._log, ROLE_NAME, [_PARTITION]))[_PARTITION]
        offset = await self._thread.call(self._store.offset)
        if offset is not None and offset <= end:
            self._waiting = await self._thread.call(self._store.waiting)
            begins = await retry_until_available(
                LOG_UNAVAILABLE, lambda: self._log.begins([_PARTITION]), role=ROLE_NAME
            )
            return max(offset, begins[_PARTITION])
        if offset is not None:
            logger.warning("the log has gone back: notices begin with what happens from now on")
        self._waiting = {}
        async with aclosing(read_until(ROLE_NAME, self._log, {}, {_PARTITION: end})) as batches:
            async for records, _ in batches:
                for record in records:
                    self._apply(record)
        await self._thread.call(partial(self._store.restart, list(self._waiting.values()), end))
        return end

    async def _take(self, records: Sequence[Record]) -> None:
        """Store the mails that follow from records, and the offset behind them."""
        if not records:
            return
        before = dict(self._waiting)
        mails = [mail for record in records for mail in self._apply(record)]
        changed = [draft for draft_id, draft in self._waiting.items() if before.get(draft_id) is not draft]
        ended = before.keys() - self._waiting.keys()
        await self._stored(partial(self._store.add, mails, changed, ended, records[-1].offset + 1))
        if mails:
            self._has_mails.set()

    def _apply(self, record: Record) -> list[Mail]:
        """Follow the draft of a record, and return the mails that the record makes."""
        try:
            message: Any = decode(record)
            if not self._epochs.admits(record, message):
                return []
            return self._mails(message)
        except UNUSABLE as error:
            leave_out(ROLE_NAME, record, error)
            return []

    def _mails(self, fact: DraftFact) -> list[Mail]:
        match fact.WhichOneof("fact"):
            case "submitted":
                draft = self._waiting[fact.draft_id] = without_content(fact.submitted.draft)
                left = self._limit.take(fact.meta.origin.actor, fact.meta.time_ms)
                if not left:
                    NOTICES.labels("over the limit").inc()
                    return []
                return mails_about(fact, draft, self._around, is_last=left == 1)
            case "approved" | "rejected" | "withdrawn" | "expired":
                ended = self._waiting.pop(fact.draft_id, None)
                return mails_about(fact, ended, self._around) if ended is not None else []
            case _:
                return []

    # --- from the store to the server

    async def _send(self) -> None:
        while True:
            self._has_mails.clear()
            mails = await self._thread.call(partial(self._store.due, self._clock.now_ms(), AT_ONCE))
            if mails:
                await self._send_some(mails)
            else:
                due_ms = await self._thread.call(self._store.next_due_ms)
                await wait_for_first(self._clock, due_ms, self._has_mails)

    async def _send_some(self, mails: Sequence[Mail]) -> None:
        messages = [(mail.address, message_of(mail, self._sender)) for mail in mails]
        tried = 0
        try:
            async with aclosing(self._transport.send(messages)) as outcomes:
                async for refusal in outcomes:
                    mail, tried = mails[tried], tried + 1
                    await self._note(mail, refusal)
        except AwayError as error:
            logger.warning("the mail server takes no mails at present; they are sent again", error=str(error))
            for mail in mails[tried:]:
                await self._note(mail, MailRefusal(str(error), is_final=False))

    async def _note(self, mail: Mail, refusal: MailRefusal | None) -> None:
        """Store what became of an attempt."""
        now_ms = self._clock.now_ms()
        if refusal is None:
            change, result = partial(self._store.remove, mail.mail_id), "taken"
        elif refusal.is_final or now_ms - mail.created_ms >= GIVEN_UP_MS:
            change, result = partial(self._store.remove, mail.mail_id), "given up"
            answer = refusal.reason.replace(mail.address, "the address")
            logger.error("a mail about a draft is given up", draft=mail.draft_id, answer=answer)
        else:
            delay_ms = min(FIRST_DELAY_MS << min(mail.attempts, 10), MAX_DELAY_MS)
            due_ms = now_ms + round(delay_ms * self._jitter.uniform(0.75, 1.25))
            change, result = partial(self._store.postpone, mail.mail_id, due_ms), "failed"
        NOTICES.labels(result).inc()
        await self._stored(change)
        self.attempts += 1

    async def _stored(self, change: Callable[[], None]) -> None:
        """Change the store, once it can be written: a mail whose end is not stored would be sent again and again."""
        await retry_until_available(
            "the state of notices cannot be written", lambda: self._thread.call(change), role=ROLE_NAME
        )


async def _end(tasks: Collection["asyncio.Task[None]"]) -> None:
    """Cancel tasks until they have ended.

    The library waits by `asyncio.wait_for`, which before Python 3.12 may lose a cancellation that comes together with
    an answer of the server.
    """
    pending = set(tasks)
    while pending:
        for task in pending:
            task.cancel()
        _, pending = await asyncio.wait(pending, timeout=_AGAIN_S)
