"""Decisions about accounts: given facts, when a request, then facts; and what a repeated fact does to the state."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protos.accounts.v1.accounts_pb2 import (
    AccountFact,
    AppGiven,
    LinkCreated,
    LoggedIn,
    LogInFact,
    Member,
    Team,
    TeamChanged,
    Token,
    TokenCreated,
    TokenRevoked,
    TokenUsed,
    User,
    UserChanged,
)
from protos.accounts.v1.drafts_pb2 import (
    DecideDraftRequest,
    DraftApproved,
    DraftExpired,
    DraftFact,
    DraftRejected,
    DraftSent,
    DraftSubmitted,
    DraftWithdrawn,
)
from protos.accounts.v1.service_pb2 import UpdateUserRequest
from protos.runtime.v1.log_pb2 import Meta, Origin
from services.accounts.decide import update_user, use_link
from services.accounts.drafts.decide import decide_draft
from services.accounts.state import Envelope, apply
from services.accounts.store import DDL, AccountTable
from services.domain.permissions import OPERATOR, Actor, Role
from services.domain.secret_texts import LINK_PREFIX, TOKEN_PREFIX, hash_of, id_of, matches, new_secret_text
from services.errors import CarillonError, InputError, NotFoundError
from services.replica.sqlite_store import SqliteStore
from tests.services.accounts.conftest import push_draft

APPROVER = Actor("user/a", roles={"t": Role.APPROVER})
LINK = new_secret_text(LINK_PREFIX)
USER = User(user_id="u", login="Alice", password_hash="old", session_epoch=3, version=1)
CREATED = AccountFact(user=UserChanged(user=USER, action="created"))
INVITED = AccountFact(link=LinkCreated(link_id=LINK.id, user_id="u", token_hash=LINK.hash, expires_ms=100))
GIVEN = AccountFact(app=AppGiven(appkey="1000000001", team_id="t", version=1))
WITH_PASSWORD = User(user_id="u", login="Alice", password_hash="new", session_epoch=4, version=2)
USED = AccountFact(user=UserChanged(user=WITH_PASSWORD, action="password set", used_link_id=LINK.id))


def submitted(draft_id: str = "d") -> DraftFact:
    draft = push_draft(draft_id=draft_id)
    draft.team_id, draft.digest, draft.expires_ms = "t", b"digest", 100
    return DraftFact(meta=Meta(time_ms=1), draft_id=draft_id, submitted=DraftSubmitted(draft=draft))


APPROVED = DraftFact(
    meta=Meta(time_ms=2, origin=Origin(actor="user/a")), draft_id="d", approved=DraftApproved(digest=b"digest")
)
REJECTED = DraftFact(meta=Meta(time_ms=2), draft_id="d", rejected=DraftRejected(reason="no"))
WITHDRAWN = DraftFact(meta=Meta(time_ms=2), draft_id="d", withdrawn=DraftWithdrawn())
EXPIRED = DraftFact(meta=Meta(time_ms=200), draft_id="d", expired=DraftExpired(expires_ms=100))
DRAFT_SENT = DraftFact(meta=Meta(time_ms=3), draft_id="d", sent=DraftSent())


def state(tmp_path: Path, facts: Sequence[Envelope]) -> tuple[SqliteStore, AccountTable]:
    store = SqliteStore(tmp_path / "accounts.sqlite", DDL)
    accounts = AccountTable(store.rows)
    for fact in facts:
        apply(accounts, fact)
    return store, accounts


@pytest.mark.parametrize(
    ("facts", "now_ms", "then"),
    [
        ([CREATED, INVITED], 99, [USED]),
        ([CREATED, INVITED], 100, None),
        ([CREATED, INVITED, USED], 99, None),
        ([CREATED, INVITED, USED, INVITED], 99, None),
        ([CREATED], 99, None),
    ],
    ids=["in time", "expired", "used", "used, and the link's record repeated", "unknown"],
)
def test_a_link_sets_a_password_once(
    tmp_path: Path, facts: Sequence[Envelope], now_ms: int, then: list[AccountFact] | None
) -> None:
    _, accounts = state(tmp_path, facts)
    if then is None:
        with pytest.raises(NotFoundError):
            use_link(accounts, LINK.text, "new", now_ms)
    else:
        assert use_link(accounts, LINK.text, "new", now_ms) == then


@pytest.mark.parametrize(
    ("request_", "settings_"),
    [
        (UpdateUserRequest(user_id="u", disabled=True), ["disabled on", "sessions ended"]),
        (UpdateUserRequest(user_id="u", end_sessions=True), ["sessions ended"]),
        (UpdateUserRequest(user_id="u", administrator=True, zone="UTC"), ["zone UTC", "administrator on"]),
        (UpdateUserRequest(user_id="u", mail_address="a.b+c@example.org"), ["mail_address a.b+c@example.org"]),
        (UpdateUserRequest(user_id="u", disabled=False, locale="", mail_address=""), None),
    ],
)
def test_a_change_of_a_user_says_what_changed(
    tmp_path: Path, request_: UpdateUserRequest, settings_: list[str] | None
) -> None:
    _, accounts = state(tmp_path, [CREATED])
    facts = update_user(accounts, OPERATOR, request_, 0)
    assert [list(fact.user.settings) for fact in facts] == ([] if settings_ is None else [settings_])
    assert all(fact.user.user.version == 2 for fact in facts)


@pytest.mark.parametrize(
    "address", ["alice", "@example.org", "alice@", "a b@example.org", "a@b\nBcc: c@example.org", "a@b,c@d", "é@b.org"]
)
def test_what_is_no_mail_address_is_refused(tmp_path: Path, address: str) -> None:
    _, accounts = state(tmp_path, [CREATED])
    with pytest.raises(InputError, match="mail address"):
        update_user(accounts, OPERATOR, UpdateUserRequest(user_id="u", mail_address=address), 0)


APPROVE = DecideDraftRequest(draft_id="d", approved=DraftApproved(digest=b"digest"))


@pytest.mark.parametrize(
    ("facts", "when", "then"),
    [
        ([GIVEN, submitted()], APPROVE, DraftFact(draft_id="d", approved=DraftApproved(digest=b"digest"))),
        ([GIVEN, submitted()], DecideDraftRequest(draft_id="d", approved=DraftApproved(digest=b"x")), None),
        ([GIVEN, submitted()], DecideDraftRequest(draft_id="d"), None),
        ([submitted()], APPROVE, None),
        ([GIVEN], APPROVE, None),
        ([GIVEN, submitted(), REJECTED], APPROVE, None),
        ([GIVEN, submitted(), WITHDRAWN], APPROVE, None),
        ([GIVEN, submitted(), EXPIRED], APPROVE, None),
        ([GIVEN, submitted(), APPROVED], APPROVE, None),
        ([GIVEN, submitted(), APPROVED, DRAFT_SENT], APPROVE, None),
        ([GIVEN, submitted(), REJECTED, submitted()], APPROVE, None),
    ],
    ids=[
        "waiting", "another digest", "no decision", "an app that left", "unknown", "rejected", "withdrawn", "expired",
        "approved", "sent", "a repeated submission",
    ],
)  # fmt: skip
def test_a_draft_is_approved_once(
    tmp_path: Path, facts: Sequence[Envelope], when: DecideDraftRequest, then: DraftFact | None
) -> None:
    _, accounts = state(tmp_path, facts)
    if then is None:
        with pytest.raises(CarillonError):
            decide_draft(accounts, APPROVER, when, 50)
    else:
        assert decide_draft(accounts, APPROVER, when, 50) == [then]


EVERY_FACT: list[Envelope] = [
    CREATED,
    INVITED,
    AccountFact(
        team=TeamChanged(team=Team(team_id="t", name="News", members=[Member(user_id="u", role=2)], version=1))  # type: ignore[arg-type]
    ),
    GIVEN,
    AccountFact(token=TokenCreated(token=Token(token_id="k", team_id="t", name="ci"))),
    LogInFact(meta=Meta(time_ms=5), logged_in=LoggedIn(user_id="u", totp_step=9, recovery_code_hash=b"h")),
    LogInFact(meta=Meta(time_ms=5), token_used=TokenUsed(token_id="k")),
    submitted(),
    APPROVED,
    DRAFT_SENT,
    submitted("e"),
    DraftFact(meta=Meta(time_ms=200), draft_id="e", expired=DraftExpired(expires_ms=100)),
    USED,
    AccountFact(token_revoked=TokenRevoked(token_id="k")),
    AccountFact(app=AppGiven(appkey="1000000001", version=2)),
    AccountFact(meta=Meta(epoch=1)),
    LogInFact(),
    DraftFact(),
]


@pytest.mark.parametrize("number", range(len(EVERY_FACT)))
def test_a_repeated_fact_changes_nothing(tmp_path: Path, number: int) -> None:
    store, accounts = state(tmp_path, EVERY_FACT)
    before = store.digest()
    apply(accounts, EVERY_FACT[number])
    assert store.digest() == before


def test_the_order_of_the_topics_does_not_matter(tmp_path: Path) -> None:
    """A start reads the three topics one after the other, whatever their order was when they were written."""
    store, _ = state(tmp_path / "written", EVERY_FACT)
    by_topic = sorted(EVERY_FACT, key=lambda fact: type(fact).__name__, reverse=True)
    other, _ = state(tmp_path / "read", by_topic)
    assert other.digest() == store.digest()


@given(other=st.text(max_size=20), position=st.integers(0, 10**6), letter=st.sampled_from("abcXYZ0129_-"))
def test_only_the_text_itself_proves_a_secret(other: str, position: int, letter: str) -> None:
    made = new_secret_text(LINK_PREFIX)
    place = position % len(made.text)
    changed = made.text[:place] + letter + made.text[place + 1 :]
    assert id_of(made.text, LINK_PREFIX) == made.id
    assert id_of(made.text, TOKEN_PREFIX) is None
    assert matches(made.text, made.hash)
    assert hash_of(made.text) == made.hash
    for text in (other, changed, made.text + other):
        assert matches(text, made.hash) == (text == made.text)
        id_of(text, LINK_PREFIX)
