"""The people whom a fact about a draft concerns, and the mail to each, in that person's language and time zone.

Pure.
"""

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from email.message import EmailMessage
from email.policy import SMTP
from email.utils import format_datetime, parseaddr
from types import MappingProxyType
from typing import NamedTuple, Protocol
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from protos.accounts.v1.accounts_pb2 import Team, User
from protos.accounts.v1.drafts_pb2 import Draft, DraftFact
from protos.push.v1.push_pb2 import SendPush
from protos.scheduling.v1.scheduling_pb2 import CreateTask
from services.domain.accounts import user_actor
from services.domain.permissions import Action, Role, may
from services.webhooks.notices.store import Mail


class AccountNames(Protocol):
    """The part of the account directory that says who is to be told."""

    def user(self, user_id: str) -> User | None: ...

    def team(self, team_id: str) -> Team | None: ...

    def name_of(self, actor: str) -> str: ...


class Surroundings(NamedTuple):
    """What mails name besides the draft. `app_name`: by appkey. `console_url`: without a slash at its end.

    `zone`: that of the installation, for users without one of their own.
    """

    people: AccountNames
    app_name: Callable[[str], str]
    console_url: str
    zone: ZoneInfo


def without_content(draft: Draft) -> Draft:
    """Return what the mails about a draft need: who wrote it, for which apps, and until when it waits."""
    kept = Draft(
        draft_id=draft.draft_id,
        team_id=draft.team_id,
        estimated_devices=draft.estimated_devices,
        authors=draft.authors,
        expires_ms=draft.expires_ms,
        version=draft.version,
        changed_by=draft.changed_by,
    )
    appkeys = dict.fromkeys(push.appkey for push in draft.task.pushes)
    kept.task.CopyFrom(CreateTask(pushes=[SendPush(appkey=appkey) for appkey in appkeys]))
    return kept


HOUR_MS = 3_600_000
MAX_ASKED = 20
"""Drafts of one author, new or changed, about which approvers are asked by mail within an hour."""


class AuthorLimit:
    """Counts the drafts that each author submits, in hours that begin with the first one."""

    def __init__(self) -> None:
        self._hours: dict[str, tuple[int, int]] = {}

    def take(self, author: str, time_ms: int) -> int:
        """Count a draft; return how many mails about drafts of the author are left in the hour, this one included."""
        self._hours = {name: hour for name, hour in self._hours.items() if time_ms < hour[0] + HOUR_MS}
        begun_ms, count = self._hours.get(author, (time_ms, 0))
        self._hours[author] = begun_ms, count + 1
        return max(0, MAX_ASKED - count)


def mails_about(fact: DraftFact, draft: Draft, around: Surroundings, *, is_last: bool = False) -> list[Mail]:
    """Return the mails that a fact makes. `draft`: the one that it is about, as `without_content` leaves it.

    `is_last`: no mails will tell of the author's next drafts, which these say.

    Approvers are asked for an approval, and told if it came to nothing; authors are told what became of their draft.
    Nobody is told of the own act.
    """
    kind = fact.WhichOneof("fact") or ""
    approvers, authors = _approvers(draft, around.people), _authors(draft, around.people)
    told: list[tuple[Iterable[User], str]] = []
    match kind:
        case "submitted":
            told = [(approvers, "changed" if draft.version > 1 else "waits")]
        case "approved" | "rejected" | "withdrawn":
            told = [(authors, kind)]
        case "expired":
            told = [(authors, "expired"), (approvers, "expired_for_approvers")]
        case _:
            pass
    actor = fact.meta.origin.actor
    return [
        _mail(fact, draft, user, words, around, is_last=is_last)
        for users, words in told
        for user in users
        if f"user/{user.user_id}" != actor
    ]


def message_of(mail: Mail, sender: str) -> EmailMessage:
    """Return the message as it is sent; a repeated attempt sends the same, so that servers may recognise it."""
    message = EmailMessage(policy=SMTP)
    message["From"] = sender
    message["To"] = mail.address
    message["Subject"] = mail.subject
    message["Date"] = format_datetime(datetime.fromtimestamp(mail.created_ms / 1000, UTC))
    message["Message-ID"] = f"<{mail.mail_id}@{parseaddr(sender)[1].rpartition('@')[2]}>"
    message["Auto-Submitted"] = "auto-generated"
    message.set_content(mail.text)
    return message


def _approvers(draft: Draft, people: AccountNames) -> list[User]:
    """Return the members of the team who may approve the draft: it is not theirs."""
    team = people.team(draft.team_id)
    if team is None:
        return []
    members = (people.user(member.user_id) for member in team.members if member.role >= Role.APPROVER)
    return [
        user
        for user in members
        if user is not None
        and user.mail_address
        and f"user/{user.user_id}" not in draft.authors
        and may(user_actor(user, [team]), Action.APPROVE, team.team_id)
    ]


def _authors(draft: Draft, people: AccountNames) -> list[User]:
    """Return the users who wrote or changed the draft, or made the API token that did."""
    users = (people.user(name.removeprefix("user/")) for name in draft.authors if name.startswith("user/"))
    return [user for user in users if user is not None and user.mail_address and not user.disabled]


def _mail(fact: DraftFact, draft: Draft, user: User, words: str, around: Surroundings, *, is_last: bool) -> Mail:
    texts = _TEXTS["zh" if user.locale.lower().startswith("zh") else "en"]
    team = around.people.team(draft.team_id)
    names = {
        "team": team.name if team else draft.team_id,
        "apps": texts["separator"].join(around.app_name(push.appkey) for push in draft.task.pushes),
        "devices": str(draft.estimated_devices),
        "author": around.people.name_of(draft.changed_by or _submitter(fact, draft)),
        "actor": around.people.name_of(fact.meta.origin.actor) or texts["operator"],
        "until": _moment(draft.expires_ms, user, around.zone),
        "reason": fact.rejected.reason,
    }
    lines = [texts[words].format(**names)]
    if names["reason"]:
        lines.append(texts["reason"].format(**names))
    if is_last:
        lines.append(texts["last"].format(**names))
    lines.append(f"{around.console_url}/drafts/{draft.team_id}/{draft.draft_id}")
    lines.append(texts["why"].format(account=f"{around.console_url}/account"))
    mail_id = hashlib.blake2b(fact.meta.event_id + user.user_id.encode(), digest_size=16).hexdigest()
    subject = " ".join(texts[f"{words}_subject"].format(**names).split())
    is_request = words in ("waits", "changed")
    text = "\n\n".join(lines) + "\n"
    return Mail(mail_id, draft.draft_id, is_request, fact.meta.time_ms, user.mail_address, subject, text)


def _submitter(fact: DraftFact, draft: Draft) -> str:
    """Return who submitted the draft: the actor of that fact, or the first author where there is none."""
    if fact.HasField("submitted") and fact.meta.origin.actor:
        return fact.meta.origin.actor
    return next(iter(draft.authors), "")


def _moment(time_ms: int, user: User, zone: ZoneInfo) -> str:
    try:
        own = ZoneInfo(user.zone) if user.zone else zone
    except (ZoneInfoNotFoundError, ValueError, OSError):
        own = zone
    return datetime.fromtimestamp(time_ms / 1000, own).strftime("%Y-%m-%d %H:%M %Z")


_TEXTS: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "en": {
            "separator": ", ",
            "operator": "an operator",
            "waits_subject": "A push of team {team} waits for your approval",
            "waits": "{author} submitted a push to {apps}, for {devices} devices."
            " It waits for the approval of a second person until {until}.",
            "changed_subject": "A push of team {team} was changed and waits for your approval",
            "changed": "{author} changed a push to {apps}, for {devices} devices."
            " It waits for the approval of a second person until {until}.",
            "approved_subject": "Your push to {apps} was approved",
            "approved": "{actor} approved your push to {apps}. It is sent as it was approved.",
            "rejected_subject": "Your push to {apps} was rejected",
            "rejected": "{actor} rejected your push to {apps}. It is not sent.",
            "withdrawn_subject": "Your push to {apps} was withdrawn",
            "withdrawn": "{actor} withdrew your push to {apps}. It is not sent.",
            "expired_subject": "Your push to {apps} was not approved in time",
            "expired": "Nobody decided about your push to {apps} until {until}. It is not sent.",
            "expired_for_approvers_subject": "A push of team {team} was not approved in time",
            "expired_for_approvers": "Nobody decided about a push to {apps} until {until}. It is not sent.",
            "reason": "Reason: {reason}",
            "last": "{author} has submitted many pushes: for an hour no mails tell of further ones."
            " They wait in the console.",
            "why": "You get this mail because your account has this address: {account}",
        },
        "zh": {
            "separator": "、",
            "operator": "运维人员",
            "waits_subject": "团队 {team} 有一条推送等待你审批",
            "waits": "{author} 提交了发往 {apps} 的推送，涉及 {devices} 台设备，需在 {until} 之前由另一人审批。",
            "changed_subject": "团队 {team} 的一条推送已修改，等待你审批",
            "changed": "{author} 修改了发往 {apps} 的推送，涉及 {devices} 台设备，需在 {until} 之前由另一人审批。",
            "approved_subject": "你发往 {apps} 的推送已获批准",
            "approved": "{actor} 批准了你发往 {apps} 的推送，将按批准时的内容发送。",
            "rejected_subject": "你发往 {apps} 的推送被驳回",
            "rejected": "{actor} 驳回了你发往 {apps} 的推送，它不会发送。",
            "withdrawn_subject": "你发往 {apps} 的推送已撤回",
            "withdrawn": "{actor} 撤回了你发往 {apps} 的推送，它不会发送。",
            "expired_subject": "你发往 {apps} 的推送未及时获批",
            "expired": "到 {until} 为止没有人审批你发往 {apps} 的推送，它不会发送。",
            "expired_for_approvers_subject": "团队 {team} 的一条推送未及时获批",
            "expired_for_approvers": "到 {until} 为止没有人审批发往 {apps} 的推送，它不会发送。",
            "reason": "原因：{reason}",
            "last": "{author} 提交了很多推送：一小时内不再发送邮件告知其后续推送，请在控制台查看。",
            "why": "你的账号设置了此邮箱，因此收到本邮件：{account}",
        },
    }
)


def texts() -> Sequence[Mapping[str, str]]:
    """Return the texts of each language."""
    return list(_TEXTS.values())
