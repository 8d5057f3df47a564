"""The state of accounts, and how facts change it. Each of the three topics changes rows of its own.

    topic `accounts`   users, teams, the apps of teams, one-time links, API tokens, changes that wait to be confirmed,
                       confirmed erasures that are not carried out yet
    topic `log-ins`    the last log-in, the last one-time code and the known networks of each user, used recovery codes,
                       uses of tokens
    topic `drafts`     pushes of the last hour sent without an approval, by sender; drafts, which wait for one:

    WAITING ── DraftSubmitted ──> WAITING (new content)
       ├────── DraftRejected ───> REJECTED
       ├────── DraftWithdrawn ──> WITHDRAWN
       ├────── DraftExpired ────> EXPIRED
       └────── DraftApproved ───> APPROVED ── DraftSent ──> SENT

A draft whose time is over is expired from that moment on, whether its fact is written yet or not: it can neither be
approved nor changed. An approved draft will be sent: each start hands over the drafts whose DraftSent is missing, under
the same task key. A draft that ended, or was approved and is sent, is deleted 400 days later, when another one is
submitted.
"""

from dataclasses import dataclass
from typing import Protocol, assert_never

from protos.accounts.v1.accounts_pb2 import (
    AccountFact,
    AppGiven,
    LinkCreated,
    LogInFact,
    LogInMethod,
    PendingChange,
    Team,
    Token,
    User,
)
from protos.accounts.v1.drafts_pb2 import Draft, DraftFact, DraftStatus, PushAdmitted
from protos.runtime.v1.log_pb2 import Meta, Origin
from services.domain.attempt_buckets import site_of

Envelope = AccountFact | LogInFact | DraftFact


@dataclass(frozen=True, slots=True)
class LogInState:
    """The last log-in of a user (0: none), and the interval of the last one-time code, which is used up."""

    last_ms: int = 0
    totp_step: int = 0


@dataclass(frozen=True, slots=True)
class DraftState:
    """A draft, its status and the decision on it. `decided_by`: an account. `origin`: that of its latest content."""

    draft: Draft
    status: "DraftStatus.ValueType"
    origin: Origin
    decided_by: str = ""
    decided_ms: int = 0
    reason: str = ""

    def status_at(self, now_ms: int) -> "DraftStatus.ValueType":
        """Return the status, which is EXPIRED for a draft that has waited too long."""
        is_over = self.status == DraftStatus.DRAFT_STATUS_WAITING and now_ms >= self.draft.expires_ms
        return DraftStatus.DRAFT_STATUS_EXPIRED if is_over else self.status


class Accounts(Protocol):
    """A store of accounts. Repeated facts change nothing."""

    def put_user(self, user: User) -> None:
        """Store a user unless this version or a later one is stored."""
        ...

    def put_team(self, team: Team) -> None:
        """Store a team as `put_user` does."""
        ...

    def give_app(self, given: AppGiven) -> None:
        """Store the team of an app as `put_user` does."""
        ...

    def add_link(self, link: LinkCreated) -> None:
        """Add a one-time link unless it is known; the earlier ones of its user end."""
        ...

    def end_link(self, link_id: str) -> None: ...

    def add_token(self, token: Token) -> None:
        """Add an API token unless it is known."""
        ...

    def end_token(self, token_id: str) -> None: ...

    def add_change(self, change: PendingChange, time_ms: int) -> None:
        """Add a change that waits for a confirmation unless it is known; delete those that had expired by this time."""
        ...

    def end_change(self, change_id: str, *, confirmed: bool) -> None:
        """End the waiting of a change. A confirmed erasure is kept until `note_erasure_sent`."""
        ...

    def note_erasure_sent(self, change_id: str) -> None: ...

    def note_log_in(self, user_id: str, time_ms: int, totp_step: int) -> None: ...

    def note_network(self, user_id: str, site: str, time_ms: int, session_epoch: int) -> None:
        """Note that the user has logged in from a network; the latest ten of each user are kept."""
        ...

    def use_recovery_code(self, code_hash: bytes) -> None: ...

    def note_token_use(self, token_id: str, time_ms: int) -> None: ...

    def put_draft(self, draft: Draft, meta: Meta) -> None:
        """Add a draft that waits, or replace the content of one that waits; the meta is that of the fact.

        Some of the drafts that ended long before the fact are deleted.
        """
        ...

    def end_draft(
        self,
        draft_id: str,
        before: "DraftStatus.ValueType",
        after: "DraftStatus.ValueType",
        meta: Meta,
        reason: str = "",
    ) -> None:
        """Change the status of a draft that is in `before`; the meta says who decided that, and when."""
        ...

    def expire_draft(self, draft_id: str) -> None:
        """Note that a draft that waits has expired, at the time that it names."""
        ...

    def note_sent(self, draft_id: str) -> None: ...

    def put_admitted(self, admitted: PushAdmitted, meta: Meta) -> None:
        """Count a push that is sent without an approval with the later ones of its sender; see AdmittedTable."""
        ...


def apply(accounts: Accounts, message: Envelope) -> None:
    """Apply one fact of the three topics."""
    match message:
        case AccountFact():
            _apply_account(accounts, message)
        case LogInFact():
            _apply_log_in(accounts, message)
        case DraftFact():
            _apply_draft(accounts, message)


def _apply_account(accounts: Accounts, fact: AccountFact) -> None:
    match fact.WhichOneof("fact"):
        case "user":
            accounts.put_user(fact.user.user)
            if fact.user.used_link_id:
                accounts.end_link(fact.user.used_link_id)
        case "team":
            accounts.put_team(fact.team.team)
        case "app":
            accounts.give_app(fact.app)
        case "link":
            accounts.add_link(fact.link)
        case "token":
            accounts.add_token(fact.token.token)
        case "token_revoked":
            accounts.end_token(fact.token_revoked.token_id)
        case "change_proposed":
            accounts.add_change(fact.change_proposed.change, fact.meta.time_ms)
        case "change_decided":
            accounts.end_change(fact.change_decided.change_id, confirmed=fact.change_decided.confirmed)
        case "erasure_sent":
            accounts.note_erasure_sent(fact.erasure_sent.change_id)
        case "session_ended" | None:
            pass
        case unexpected:
            assert_never(unexpected)


def _apply_log_in(accounts: Accounts, fact: LogInFact) -> None:
    match fact.WhichOneof("fact"):
        case "logged_in":
            done, time_ms = fact.logged_in, fact.meta.time_ms
            accounts.note_log_in(done.user_id, time_ms, done.totp_step)
            if done.session_epoch and done.method != LogInMethod.LOG_IN_METHOD_SUBJECT:
                accounts.note_network(done.user_id, site_of(fact.meta.origin.address), time_ms, done.session_epoch)
            if fact.logged_in.recovery_code_hash:
                accounts.use_recovery_code(fact.logged_in.recovery_code_hash)
        case "token_used":
            accounts.note_token_use(fact.token_used.token_id, fact.meta.time_ms)
        case "failed" | "data_read" | None:
            pass
        case unexpected:
            assert_never(unexpected)


def _apply_draft(accounts: Accounts, fact: DraftFact) -> None:
    waiting = DraftStatus.DRAFT_STATUS_WAITING
    match fact.WhichOneof("fact"):
        case "submitted":
            accounts.put_draft(fact.submitted.draft, fact.meta)
        case "approved":
            accounts.end_draft(fact.draft_id, waiting, DraftStatus.DRAFT_STATUS_APPROVED, fact.meta)
        case "rejected":
            reason = fact.rejected.reason
            accounts.end_draft(fact.draft_id, waiting, DraftStatus.DRAFT_STATUS_REJECTED, fact.meta, reason)
        case "withdrawn":
            accounts.end_draft(fact.draft_id, waiting, DraftStatus.DRAFT_STATUS_WITHDRAWN, fact.meta)
        case "expired":
            accounts.expire_draft(fact.draft_id)
        case "sent":
            accounts.note_sent(fact.draft_id)
        case "admitted":
            accounts.put_admitted(fact.admitted, fact.meta)
        case None:
            pass
        case unexpected:
            assert_never(unexpected)
