"""Mails about drafts arrive: at least once, later if the server is away, not for ever, and not of what is decided."""

import asyncio
import itertools
import random
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from email.message import EmailMessage
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import msgspec
import pytest

from protos.accounts.v1.accounts_pb2 import AccountFact, Member, MemberRole, Team, TeamChanged, User, UserChanged
from protos.accounts.v1.drafts_pb2 import Draft, DraftApproved, DraftExpired, DraftFact, DraftRejected, DraftSubmitted
from protos.push.v1.push_pb2 import SendPush
from protos.runtime.v1.log_pb2 import Meta, Origin
from protos.scheduling.v1.scheduling_pb2 import CreateTask
from services.domain import ids
from services.domain.accounts import AccountDirectory
from services.domain.topics import ACCOUNTS, DRAFTS, TOPICS
from services.errors import UnavailableError
from services.log.port import NewRecord
from services.log.sqlite.log import SqliteLog
from services.process.clock import ManualClock
from services.webhooks.notices.mail_server import MailServer
from services.webhooks.notices.mails import MAX_ASKED, Surroundings
from services.webhooks.notices.service import GIVEN_UP_MS, MAX_DELAY_MS, NoticeService
from services.webhooks.notices.smtp import MailRefusal, SmtpTransport
from services.webhooks.notices.store import NoticeStore
from testkit.mail_receiver import MailReceiver, mail_receiver
from testkit.services import running_services
from testkit.waiting import until, until_holds
from tests.services.webhooks.conftest import Installation

NOW_MS = 1_800_000_000_000
TEAM = "5e0f2c1d0f5f4c1e"
AUTHOR, BOSS, HEAD = "author@example.org", "boss@example.org", "head@example.org"


class Office:
    """A log with a team: an author and two approvers, and the service that mails them."""

    def __init__(self, directory: Path, receiver: MailReceiver) -> None:
        self.directory = directory
        self.receiver = receiver
        self.clock = ManualClock(NOW_MS)
        self.log = SqliteLog(directory / "log.sqlite", TOPICS)
        self.transport: Any = SmtpTransport(
            MailServer("smtp", "127.0.0.1", receiver.port, is_plain=True),
            "push@example.org",
            ssl.create_default_context(),
        )

    async def found(self) -> None:
        """Write the records of the team and its members."""
        roles = {"author": "SENDER", "boss": "APPROVER", "head": "ADMINISTRATOR"}
        members = [Member(user_id=name, role=MemberRole.Value(f"MEMBER_ROLE_{role}")) for name, role in roles.items()]
        users = [User(user_id=name, login=name, mail_address=f"{name}@example.org", version=1) for name in roles]
        facts = [AccountFact(meta=self.meta(), user=UserChanged(user=user)) for user in users]
        team = Team(team_id=TEAM, name="News", members=members, version=1)
        facts.append(AccountFact(meta=self.meta(), team=TeamChanged(team=team)))
        await self.log.append([NewRecord(ACCOUNTS.name, 0, b"k", fact.SerializeToString()) for fact in facts])

    def meta(self, actor: str = "") -> Meta:
        return Meta(event_id=ids.event_id(), time_ms=self.clock.now_ms(), origin=Origin(actor=actor))

    async def write(self, draft_id: str, actor: str = "user/author", **fact: Any) -> None:
        record = DraftFact(meta=self.meta(actor), draft_id=draft_id, **fact)
        await self.log.append([NewRecord(DRAFTS.name, 0, draft_id.encode(), record.SerializeToString())])

    async def submit(self, draft_id: str) -> None:
        draft = Draft(draft_id=draft_id, team_id=TEAM, authors=["user/author"], version=1, expires_ms=NOW_MS + 1)
        draft.task.CopyFrom(CreateTask(pushes=[SendPush(appkey="1")]))
        await self.write(draft_id, submitted=DraftSubmitted(draft=draft))

    @asynccontextmanager
    async def running(self) -> AsyncIterator[NoticeService]:
        accounts = AccountDirectory(self.log)
        around = Surroundings(accounts, lambda appkey: f"app {appkey}", "https://push.example.org", ZoneInfo("UTC"))
        service = NoticeService(
            self.log,
            NoticeStore(self.directory),
            around,
            self.transport,
            "Carillon <push@example.org>",
            self.clock,
            random.Random(1),
        )
        async with running_services([accounts, service]):
            await until_holds(lambda: service.has_begun)
            yield service

    def waiting_mails(self) -> list[str]:
        """Return the addresses of the mails that no server has taken; the service must not be running."""
        store = NoticeStore(self.directory)
        found = [mail.address for mail in store.due(2**53, 100)]
        store.close()
        return found

    async def until_tried(self, service: NoticeService, attempts: int) -> None:
        """Move the clock until each waiting mail was tried so often."""

        def tried() -> bool:
            self.clock.move(30)
            return service.attempts >= attempts

        await until_holds(tried)


@pytest.fixture
async def receiver() -> AsyncIterator[MailReceiver]:
    async with mail_receiver() as running:
        yield running


@pytest.fixture
async def office(tmp_path: Path, receiver: MailReceiver) -> AsyncIterator[Office]:
    made = Office(tmp_path, receiver)
    await made.found()
    yield made
    await made.log.close()


async def test_approvers_are_asked_and_authors_told(office: Office, receiver: MailReceiver) -> None:
    async with office.running() as service:
        await office.submit("d1")
        await receiver.until_mails(2)
        await office.write("d1", "user/boss", rejected=DraftRejected(reason="too loud"))
        await receiver.until_mails(3)
        await office.submit("d2")
        await receiver.until_mails(5)
        await office.write("d2", "", expired=DraftExpired(expires_ms=NOW_MS))
        await until_holds(lambda: service.attempts == 8)
    asked = receiver.to(BOSS)
    assert [mail["Subject"] for mail in asked] == [
        "A push of team News waits for your approval",
        "A push of team News waits for your approval",
        "A push of team News was not approved in time",
    ]
    assert len(receiver.to(HEAD)) == 3
    rejected, expired = receiver.to(AUTHOR)
    assert "too loud" in rejected.get_content()
    assert expired["Subject"] == "Your push to app 1 was not approved in time"
    assert receiver.senders == {"push@example.org"}
    assert office.waiting_mails() == []


async def test_the_role_sends_mails_where_a_server_is_set(tmp_path: Path, receiver: MailReceiver) -> None:
    installation = Installation(tmp_path / "role", [])
    installation.settings = msgspec.structs.replace(
        installation.settings,
        smtp_url=f"smtp://127.0.0.1:{receiver.port}?tls=no",
        smtp_from="push@example.org",
        console_url="https://push.example.org/",
    )
    office = Office(tmp_path, receiver)
    office.log = installation.log
    await office.found()
    numbers = itertools.count()

    async def is_told() -> bool:
        await office.submit(f"d{next(numbers)}")
        return bool(receiver.to(BOSS))

    async with installation.running():
        await until(is_told)
    assert f"https://push.example.org/drafts/{TEAM}/d" in receiver.to(BOSS)[0].get_content()
    await installation.log.close()


async def test_drafts_from_before_the_first_start_make_no_mails_and_what_becomes_of_them_does(
    office: Office, receiver: MailReceiver
) -> None:
    await office.submit("old")
    await office.submit("done")
    await office.write("done", "user/boss", approved=DraftApproved())
    async with office.running():
        await office.write("old", "user/boss", approved=DraftApproved())
        await receiver.until_mails(1)
    assert [(mail["To"], mail["Subject"]) for mail in receiver.mails] == [(AUTHOR, "Your push to app 1 was approved")]


async def test_what_happens_while_the_role_is_away_is_told_once_it_is_back(
    office: Office, receiver: MailReceiver
) -> None:
    async with office.running() as service:
        await office.submit("d1")
        await until_holds(lambda: service.attempts == 2)
    await office.write("d1", "user/boss", approved=DraftApproved())
    await office.submit("d2")
    async with office.running() as service:
        await until_holds(lambda: service.attempts == 3)
    async with office.running():
        await office.submit("d3")
        await receiver.until_mails(7)
    assert [len(receiver.to(address)) for address in (AUTHOR, BOSS, HEAD)] == [1, 3, 3]


async def test_mails_wait_for_a_server_that_is_away_and_survive_a_restart(
    office: Office, receiver: MailReceiver
) -> None:
    await receiver.stop()
    async with office.running() as service:
        await office.submit("d1")
        await office.until_tried(service, 6)
    assert sorted(office.waiting_mails()) == [BOSS, HEAD]
    await receiver.start()
    async with office.running() as service:
        office.clock.move(MAX_DELAY_MS / 1000 * 2)
        await until_holds(lambda: service.attempts == 2)
    assert office.waiting_mails() == []
    assert len(receiver.mails) == 2


async def test_nobody_is_asked_for_an_approval_that_was_given(office: Office, receiver: MailReceiver) -> None:
    await receiver.stop()
    async with office.running() as service:
        await office.submit("d1")
        await until_holds(lambda: service.attempts == 2)
        await office.write("d1", "user/boss", approved=DraftApproved())
        await until_holds(lambda: service.attempts == 3)
    assert office.waiting_mails() == [AUTHOR]
    await receiver.start()
    async with office.running():
        office.clock.move(MAX_DELAY_MS / 1000 * 2)
        await receiver.until_mails(1)
    assert [mail["To"] for mail in receiver.mails] == [AUTHOR]


async def test_a_mail_is_given_up_after_a_day(office: Office, receiver: MailReceiver) -> None:
    await receiver.stop()
    async with office.running() as service:
        await office.submit("d1")
        await until_holds(lambda: service.attempts == 2)
        office.clock.move(GIVEN_UP_MS / 1000)
        await until_holds(lambda: service.attempts == 4)
    assert office.waiting_mails() == []


async def test_an_address_that_is_refused_for_good_is_given_up_and_others_get_their_mails(
    office: Office, receiver: MailReceiver
) -> None:
    receiver.refusals[BOSS] = "550 no such user"
    receiver.answers = ["451 try again later"]
    async with office.running() as service:
        await office.submit("d1")
        await until_holds(lambda: service.attempts >= 2)
        assert receiver.mails == []
        office.clock.move(120)
        await until_holds(lambda: service.attempts == 3)
    assert [mail["To"] for mail in receiver.mails] == [HEAD]
    assert office.waiting_mails() == []


async def test_a_mail_that_was_taken_before_a_kill_is_sent_again_as_it_was(
    office: Office, receiver: MailReceiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as killed:
        killed.setattr(NoticeStore, "remove", lambda *_: None)
        async with office.running():
            await office.submit("d1")
            await receiver.until_mails(2)
    async with office.running():
        await until_holds(lambda: {mail["To"] for mail in receiver.mails[2:]} >= {BOSS, HEAD})
    of_boss = receiver.to(BOSS)
    assert len(of_boss) >= 2
    assert len({(mail["Message-ID"], mail["Date"], mail.get_content()) for mail in of_boss}) == 1


async def test_a_mail_whose_end_cannot_be_stored_is_not_sent_again(
    office: Office, receiver: MailReceiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    remove, failures = NoticeStore.remove, ["disk full", "disk full"]

    def remove_later(store: NoticeStore, mail_id: str) -> None:
        if failures:
            raise UnavailableError(failures.pop())
        remove(store, mail_id)

    monkeypatch.setattr(NoticeStore, "remove", remove_later)
    async with office.running() as service:
        await office.submit("d1")
        await until_holds(lambda: service.attempts == 2)
    assert (len(receiver.mails), failures) == (2, [])


class DeafTransport:
    """A transport that loses a cancellation, as `asyncio.wait_for` may before Python 3.12."""

    def __init__(self) -> None:
        self.is_sending = False
        self.has_lost_one = False

    async def send(self, mails: Sequence[tuple[str, EmailMessage]]) -> AsyncGenerator[MailRefusal | None, None]:
        self.is_sending = True
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.has_lost_one = True
        for _ in mails:
            yield None


async def test_the_role_stops_although_a_cancellation_is_lost(office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.webhooks.notices.service._AGAIN_S", 0.05)
    office.transport = transport = DeafTransport()
    async with office.running():
        await office.submit("d1")
        await until_holds(lambda: transport.is_sending)
    assert transport.has_lost_one


async def test_a_log_that_went_back_is_followed_from_its_end(office: Office, receiver: MailReceiver) -> None:
    store = NoticeStore(office.directory)
    store.restart([], 10_000)
    store.close()
    async with office.running():
        await office.submit("d1")
        await receiver.until_mails(2)


async def test_an_author_who_submits_drafts_in_a_loop_sends_no_more_mails_than_may_be(office: Office) -> None:
    async with office.running() as service:
        for number in range(MAX_ASKED + 1):
            await office.submit(f"d{number}")
        office.clock.move(3600)
        await office.submit("after the hour")
        await office.until_tried(service, 2 * MAX_ASKED + 2)
    assert not office.waiting_mails()
    assert len(office.receiver.mails) == 2 * MAX_ASKED + 2
