"""Whom the facts about drafts concern, and what they are told."""

import string
from collections.abc import Mapping, Sequence
from email import message_from_bytes
from email.policy import default
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from protos.accounts.v1.accounts_pb2 import Member, MemberRole, Team, User
from protos.accounts.v1.drafts_pb2 import (
    Draft,
    DraftApproved,
    DraftExpired,
    DraftFact,
    DraftRejected,
    DraftSent,
    DraftSubmitted,
    DraftWithdrawn,
)
from protos.push.v1.push_pb2 import Message, SendPush
from protos.runtime.v1.log_pb2 import Meta, Origin
from protos.scheduling.v1.scheduling_pb2 import CreateTask
from services.webhooks.notices.mails import (
    HOUR_MS,
    MAX_ASKED,
    AuthorLimit,
    Surroundings,
    mails_about,
    message_of,
    texts,
    without_content,
)
from services.webhooks.notices.store import Mail

NOW_MS = 1_800_000_000_000
EXPIRES_MS = NOW_MS + 3_600_000
TEAM = "5e0f2c1d0f5f4c1e"
SENDER, APPROVER, HEAD = (
    MemberRole.MEMBER_ROLE_SENDER,
    MemberRole.MEMBER_ROLE_APPROVER,
    MemberRole.MEMBER_ROLE_ADMINISTRATOR,
)


class Directory:
    """The users of one team, by their ids."""

    def __init__(self, users: Sequence[tuple[User, "MemberRole.ValueType"]], name: str = "News") -> None:
        self.users: Mapping[str, User] = {user.user_id: user for user, _ in users}
        members = [Member(user_id=user.user_id, role=role) for user, role in users]
        self._team = Team(team_id=TEAM, name=name, members=members)

    def user(self, user_id: str) -> User | None:
        return self.users.get(user_id)

    def team(self, team_id: str) -> Team | None:
        return self._team if team_id == TEAM else None

    def name_of(self, actor: str) -> str:
        user = self.users.get(actor.removeprefix("user/"))
        return user.display_name if user else actor


def person(name: str, **fields: object) -> User:
    known = User(user_id=name, login=name, display_name=name.title(), mail_address=f"{name}@example.org")
    known.MergeFrom(User(**fields))  # type: ignore[arg-type]
    return known


PEOPLE = Directory(
    [
        (person("author"), SENDER),
        (person("boss"), APPROVER),
        (person("head", locale="zh-CN", zone="Asia/Shanghai"), HEAD),
        (person("gone", disabled=True), APPROVER),
        (User(user_id="mute", login="mute"), APPROVER),
        (person("reader"), MemberRole.MEMBER_ROLE_VIEWER),
    ]
)


def around(people: Directory = PEOPLE) -> Surroundings:
    return Surroundings(people, {"1": "News & more"}.get, "https://push.example.org", ZoneInfo("UTC"))  # type: ignore[arg-type]


def draft(**fields: object) -> Draft:
    pushes = [SendPush(appkey="1", message=Message(content="a secret offer")), SendPush(appkey="1")]
    made = Draft(
        draft_id="d1",
        team_id=TEAM,
        body_json=b'{"text": "a secret offer"}',
        task=CreateTask(pushes=pushes),
        estimated_devices=20_000,
        authors=["token/k", "user/author"],
        expires_ms=EXPIRES_MS,
        version=1,
    )
    made.MergeFrom(Draft(**fields))  # type: ignore[arg-type]
    return made


def told(actor: str = "user/author", of: Draft | None = None, people: Directory = PEOPLE, **fact: object) -> list[Mail]:
    about = of or draft()
    meta = Meta(event_id=b"event", time_ms=NOW_MS, origin=Origin(actor=actor))
    record = DraftFact(meta=meta, draft_id="d1", **(fact or {"submitted": DraftSubmitted(draft=about)}))  # type: ignore[arg-type]
    return mails_about(record, without_content(about), around(people))


def addresses(mails: Sequence[Mail]) -> list[str]:
    return [mail.address.partition("@")[0] for mail in mails]


def test_approvers_are_asked_in_their_language_and_zone() -> None:
    boss, head = told()
    assert (boss.address, boss.subject, boss.is_request) == (
        "boss@example.org",
        "A push of team News waits for your approval",
        True,
    )
    assert boss.text.startswith("Author submitted a push to News & more, for 20000 devices.")
    assert "until 2027-01-15 09:00 UTC." in boss.text
    assert f"https://push.example.org/drafts/{TEAM}/d1\n" in boss.text
    assert (head.address, head.subject) == ("head@example.org", "团队 News 有一条推送等待你审批")
    assert "2027-01-15 17:00 CST" in head.text
    assert boss.mail_id != head.mail_id
    assert [mail.mail_id for mail in told()] == [boss.mail_id, head.mail_id]
    assert not any("secret offer" in mail.text for mail in (boss, head))


def test_nobody_is_asked_about_the_own_draft() -> None:
    assert addresses(told(of=draft(authors=["user/boss"]))) == ["head"]
    changed = told("user/boss", draft(version=1, changed_by="user/boss", authors=["user/boss"]))
    assert addresses(changed) == ["head"]
    assert told(of=draft(team_id="unknown")) == []


def test_a_changed_draft_is_said_to_be_changed() -> None:
    again = Draft()
    again.CopyFrom(draft())
    again.version, again.changed_by = 2, "user/author"
    boss, _ = told(of=again)
    assert boss.subject == "A push of team News was changed and waits for your approval"


@pytest.mark.parametrize(
    ("fact", "subject", "line"),
    [
        ({"approved": DraftApproved()}, "Your push to News & more was approved", "Boss approved your push"),
        (
            {"rejected": DraftRejected(reason="too loud")},
            "Your push to News & more was rejected",
            "Reason: too loud",
        ),
        ({"withdrawn": DraftWithdrawn()}, "Your push to News & more was withdrawn", "Boss withdrew your push"),
    ],
)
def test_authors_are_told_what_became_of_their_draft(fact: dict[str, Any], subject: str, line: str) -> None:
    (mail,) = told("user/boss", **fact)
    assert (mail.address, mail.subject, mail.is_request) == ("author@example.org", subject, False)
    assert line in mail.text
    assert told("user/author", withdrawn=DraftWithdrawn()) == []


def test_authors_and_approvers_are_told_of_an_expiry() -> None:
    mails = told("", expired=DraftExpired(expires_ms=EXPIRES_MS))
    assert addresses(mails) == ["author", "boss", "head"]
    assert mails[1].subject == "A push of team News was not approved in time"
    assert told("", sent=DraftSent()) == []


def test_a_name_cannot_add_headers_and_every_text_is_sent_whole() -> None:
    people = Directory([(person("boss"), APPROVER)], name="News\r\nBcc: everyone@example.org")
    (mail,) = told(people=people)
    message = message_of(mail, "Carillon <push@example.org>")
    read = message_from_bytes(message.as_bytes(), policy=default)
    assert read["Bcc"] is None
    assert read["Message-ID"] == f"<{mail.mail_id}@example.org>"
    assert (read["From"], read["Auto-Submitted"]) == ("Carillon <push@example.org>", "auto-generated")
    (_, head) = told()
    chinese = message_from_bytes(message_of(head, "push@example.org").as_bytes(), policy=default)
    assert chinese["Subject"] == head.subject
    assert chinese.get_content().replace("\r\n", "\n") == head.text
    assert message_of(head, "push@example.org").as_bytes().isascii()


def test_all_languages_have_the_same_texts_with_the_same_fields() -> None:
    def fields(text: str) -> set[str]:
        return {name for _, name, _, _ in string.Formatter().parse(text) if name}

    first, *others = texts()
    for other in others:
        assert {name: fields(text) for name, text in other.items()} == {
            name: fields(text) for name, text in first.items()
        }


def test_one_author_makes_so_many_mails_an_hour_and_the_last_one_says_so() -> None:
    limit = AuthorLimit()
    assert [limit.take("user/author", NOW_MS + turn) for turn in range(MAX_ASKED + 2)] == [
        *range(MAX_ASKED, 0, -1),
        0,
        0,
    ]
    assert limit.take("user/boss", NOW_MS) == MAX_ASKED
    assert limit.take("user/author", NOW_MS + HOUR_MS) == MAX_ASKED
    fact = DraftFact(meta=Meta(event_id=b"event", time_ms=NOW_MS), submitted=DraftSubmitted(draft=draft()))
    boss, head = mails_about(fact, without_content(draft()), around(), is_last=True)
    assert "for an hour no mails" in boss.text
    assert "一小时内" in head.text
    assert "for an hour no mails" not in told()[0].text
