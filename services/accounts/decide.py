"""Decisions about users and their one-time links: the facts that follow from what an actor asks for. Pure.

Each function reads the state and returns facts without their meta. InputError, NotFoundError, ConflictError and
PermissionDeniedError say why nothing follows.
"""

import hashlib
import itertools
import re
from collections.abc import Callable, Sequence
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from protos.accounts.v1.accounts_pb2 import (
    AccountFact,
    ChangeProposed,
    LinkCreated,
    LinkPurpose,
    PendingChange,
    SessionEnded,
    User,
    UserChanged,
)
from protos.accounts.v1.service_pb2 import CreateUserRequest, EndSessionRequest, UpdateUserRequest
from protos.runtime.v1.log_pb2 import Origin
from services.accounts.store import AccountTable, OpenLink
from services.domain.accounts import token_actor, user_actor
from services.domain.approval import second_roles
from services.domain.permissions import OPERATOR, Action, Actor, may
from services.domain.secret_texts import LINK_PREFIX, SecretText, id_of, matches
from services.domain.text import checked_text
from services.errors import Code, ConflictError, InputError, NotFoundError, PermissionDeniedError

CHANGE_MS = 7 * 86_400_000
"""How long a change waits for the confirmation of another administrator."""

MAX_CHANGES = 100
"""Upper bound of the changes that wait for a confirmation; and of the erasures of each team."""

LINK_MS = 24 * 3_600_000
"""How long a one-time link is valid."""

MAX_SESSION_MS = 30 * 24 * 3_600_000
"""How long the end of a session may be kept."""

_HASH_BYTES = 32
MAX_SUBJECT = 255
"""Characters of an issuer or a subject; OpenID Connect allows no longer subjects."""

_LOGIN = re.compile(r"[^\s/]{1,64}")
_MAIL_ADDRESS = re.compile(r"[A-Za-z0-9.!#$%&'*+/=?^_`{|}~-]{1,64}@[A-Za-z0-9](?:[A-Za-z0-9.-]{0,180}[A-Za-z0-9])?")
_LOCALE = re.compile(r"[A-Za-z]{2,3}(-[A-Za-z0-9]{2,8})*")


def actor_of(accounts: AccountTable, origin: Origin, now_ms: int) -> Actor:
    """Return the actor that the request's origin names. PermissionDeniedError: neither an operator nor an account."""
    if origin.interface == "cli":
        return OPERATOR
    kind, _, account_id = origin.actor.partition("/")
    if kind == "user" and (user := accounts.user(account_id)):
        return user_actor(user, accounts.teams())
    if kind == "token" and (token := accounts.token(account_id)):
        return token_actor(token, now_ms)
    raise PermissionDeniedError("the request names no account that may act")


def check_may(actor: Actor, action: Action, team_id: str = "") -> None:
    """Check that the actor may do this. PermissionDeniedError: the actor may not."""
    if not may(actor, action, team_id):
        raise PermissionDeniedError(Code.MAY_NOT, action=action.value)


def proposed(accounts: AccountTable, actor: Actor, change: PendingChange, now_ms: int) -> AccountFact:
    """Return the fact that a change waits for another administrator; an equal change that waits already is kept.

    ConflictError: too many changes wait.
    """
    waiting = accounts.changes(now_ms)
    if change.HasField("erase"):  # a team's erasures keep no other change from being proposed
        waiting = [each for each in waiting if each.HasField("erase") and each.team_id == change.team_id]
    else:
        waiting = [each for each in waiting if not each.HasField("erase")]
    for known in waiting:
        if (known.team_id, _what(known)) == (change.team_id, _what(change)):
            return AccountFact(change_proposed=ChangeProposed(change=known))
    if len(waiting) >= MAX_CHANGES:
        raise ConflictError(Code.TOO_MANY_CHANGES, most=MAX_CHANGES)
    change.proposed_by, change.created_ms, change.expires_ms = actor.name, now_ms, now_ms + CHANGE_MS
    content = _without_person(change).SerializeToString(deterministic=True)
    ids = (hashlib.blake2b(content, digest_size=8, salt=b"%d" % number).hexdigest() for number in itertools.count())
    change.change_id = next(each for each in ids if not accounts.knows_change(each))
    return AccountFact(change_proposed=ChangeProposed(change=change))


def pending_of(facts: Sequence[AccountFact]) -> PendingChange | None:
    """Return the change among the facts that waits for a confirmation."""
    return next((fact.change_proposed.change for fact in facts if fact.HasField("change_proposed")), None)


def _without_person(change: PendingChange) -> PendingChange:
    """Return what the id of a change is made of: not of a value which could be guessed by that once it is erased."""
    known = PendingChange()
    known.CopyFrom(change)
    if known.HasField("erase"):
        known.erase.ClearField("person")
    return known


def author_names(accounts: AccountTable, actor: str) -> set[str]:
    """Return the account user/ID or token/ID, and for an API token, also a revoked one, the user who made it."""
    maker = accounts.maker_of_token(actor.removeprefix("token/")) if actor.startswith("token/") else ""
    return {actor, *([f"user/{maker}"] if maker else [])}


def _what(change: PendingChange) -> bytes:
    """Return the content of a change, without its ids, proposer and times, for comparisons."""
    only = PendingChange()
    only.CopyFrom(change)
    if only.HasField("erase"):
        only.erase.ClearField("erasure_id")
        only.erase.ClearField("devices")
    for name in ("change_id", "proposed_by", "created_ms", "expires_ms", "settings"):
        only.ClearField(name)
    return only.SerializeToString(deterministic=True)


def may_be_second_person(accounts: AccountTable, user: User) -> bool:
    """Return whether the user may approve or confirm something of a team with rules that demand it."""
    least = [(team, min(roles)) for team in accounts.teams() if (roles := second_roles(team.rules))]
    return any(
        user.administrator or any(member.user_id == user.user_id and member.role >= role for member in team.members)
        for team, role in least
    )


def _makes_second_person(accounts: AccountTable, actor: Actor, *, administrator: bool) -> bool:
    """Return whether an account makes somebody an administrator, who may be the second person of a team with rules."""
    return administrator and not actor.is_operator and any(second_roles(team.rules) for team in accounts.teams())


def create_user(
    accounts: AccountTable, actor: Actor, request: CreateUserRequest, user_id: str, link: SecretText, now_ms: int
) -> list[AccountFact]:
    """Return the new user, and the one-time link with which the first password is set.

    Where teams have approval rules, another administrator has to confirm that the user becomes an administrator.
    """
    check_may(actor, Action.MANAGE_USERS)
    user = User(
        user_id=user_id,
        login=_checked_login(request.login),
        display_name=checked_text("display_name", request.display_name or request.login),
        administrator=request.administrator,
        locale=_checked_locale(request.locale),
        zone=_checked_zone(request.zone),
        created_ms=now_ms,
    )
    if accounts.user_of_login(user.login):
        raise ConflictError(Code.LOGIN_TAKEN, login=user.login)
    if request.HasField("subject"):
        user.subject.issuer = checked_text("issuer", request.subject.issuer, most=MAX_SUBJECT)
        user.subject.subject = checked_text("subject", request.subject.subject, most=MAX_SUBJECT)
        if accounts.user_of_subject(user.subject):
            raise ConflictError("there is a user with this subject already")
    waiting = []
    if _makes_second_person(accounts, actor, administrator=request.administrator):
        user.administrator = False
        waiting = [proposed(accounts, actor, _administrator(user), now_ms)]
    facts = [changed_user(user, "created", ["administrator on"] if user.administrator else [])]
    return [*facts, *waiting, *([] if user.HasField("subject") else [_link(user, link, now_ms)])]


def invite_first_administrator(
    accounts: AccountTable, login: str, user_id: str, link: SecretText, now_ms: int
) -> list[AccountFact]:
    """Return the first administrator with a one-time link, or a new link for an administrator without a password.

    ConflictError: a user can log in already and may invite others, or the login is that of a user who is disabled or no
    administrator.
    """
    users = accounts.users()
    if any(user.password_hash or (user.HasField("subject") and user.administrator) for user in users):
        raise ConflictError("there is a user who can log in already")
    for user in users:
        if user.administrator and not user.disabled:
            return [_link(user, link, now_ms)]
    if taken := accounts.user_of_login(login):
        state, mends = (
            ("disabled", f"`carillon user enable {login}`, or ") if taken.disabled else ("no administrator", "")
        )
        raise ConflictError(f"{login} is {state}: {mends}`carillon user add NAME --administrator`")
    return create_user(accounts, OPERATOR, CreateUserRequest(login=login, administrator=True), user_id, link, now_ms)


def update_user(accounts: AccountTable, actor: Actor, request: UpdateUserRequest, now_ms: int) -> list[AccountFact]:
    """Return the changed user; nothing if everything is as asked for, or if the change is only to be checked.

    Where teams have approval rules, another administrator has to confirm that the user becomes an administrator.
    """
    known = user_by_id(accounts, request.user_id)
    is_own = actor.name == f"user/{known.user_id}" and may(actor, Action.CHANGE_OWN_ACCOUNT)
    manages = any(request.HasField(name) for name in ("administrator", "disabled")) or request.remove_totp
    if manages or not is_own:
        check_may(actor, Action.MANAGE_USERS)
    if is_own and request.remove_totp:
        # A stolen session of an administrator must not be enough.
        raise PermissionDeniedError(Code.OWN_SECOND_FACTOR)
    if known.roles_by_groups and request.HasField("administrator"):
        raise ConflictError(Code.ROLES_OF_PROVIDER, login=known.login)
    user = User()
    user.CopyFrom(known)
    _set_fields(user, request)
    waiting = []
    if _makes_second_person(accounts, actor, administrator=user.administrator and not known.administrator):
        user.administrator = False
        waiting = [proposed(accounts, actor, _administrator(user), now_ms)]
    if request.end_sessions or (user.disabled and not known.disabled):
        user.session_epoch += 1
    if request.remove_totp and known.sealed_totp_secret:
        user.ClearField("sealed_totp_secret")
        del user.recovery_code_hashes[:]
        user.session_epoch += 1
    if user == known:
        return [] if request.only_check else waiting
    if not actor.is_operator and not _has_administrator(accounts, user):
        raise ConflictError(Code.NO_ADMINISTRATOR_LEFT)
    if request.only_check:
        return []
    return [changed_user(user, "set", _settings_changed(known, user)), *waiting]


def reset_password(
    accounts: AccountTable, actor: Actor, user_id: str, link: SecretText, now_ms: int
) -> list[AccountFact]:
    """Return a one-time link with which the user sets a new password. The present one stays valid until then.

    The link lets its holder act as the user. So for another user who may approve pushes of a team with rules, another
    administrator has to confirm it, and is shown the link.
    """
    check_may(actor, Action.MANAGE_USERS)
    user = user_by_id(accounts, user_id)
    if user.HasField("subject"):
        raise ConflictError(Code.NO_PASSWORD, login=user.login)
    if user.disabled:
        raise ConflictError(Code.USER_DISABLED, login=user.login)
    if not actor.is_operator and actor.name != f"user/{user_id}" and may_be_second_person(accounts, user):
        settings = [f"login {user.login}", "a new link for a password"]
        return [proposed(accounts, actor, PendingChange(new_link=user_id, settings=settings), now_ms)]
    return [_link(user, link, now_ms)]


def valid_link(accounts: AccountTable, text: str, now_ms: int) -> OpenLink:
    """Return the one-time link with this token. NotFoundError: it is unknown, used, replaced or expired."""
    found = accounts.open_link(id_of(text, LINK_PREFIX) or "")
    is_valid = found and matches(text, found.link.token_hash) and now_ms < found.link.expires_ms
    if found is None or not is_valid or found.user.disabled:
        raise NotFoundError(Code.LINK_USED)
    return found


def use_link(accounts: AccountTable, text: str, password_hash: str, now_ms: int) -> list[AccountFact]:
    """Return the user with the new password. All sessions and the link end."""
    found = valid_link(accounts, text, now_ms)
    return [_with_password(found.user, password_hash, found.link.link_id)]


def change_password(accounts: AccountTable, actor: Actor, verified_hash: str, new_hash: str) -> list[AccountFact]:
    """Return the acting user with the new password; `verified_hash`: the hash that the present one has matched."""
    user = acting_user(accounts, actor)
    if user.password_hash != verified_hash:
        raise ConflictError(Code.PASSWORD_CHANGED)
    return [_with_password(user, new_hash)]


def set_totp(
    accounts: AccountTable,
    actor: Actor,
    verified_hash: str,
    sealed_secret: bytes,
    recovery_code_hashes: Sequence[bytes],
) -> list[AccountFact]:
    """Return the acting user with a second factor; `verified_hash`: the hash that the password was compared with."""
    known = acting_user(accounts, actor)
    if known.password_hash != verified_hash:
        raise ConflictError(Code.PASSWORD_CHANGED)
    check_may_have_totp(known)
    user = User()
    user.CopyFrom(known)
    user.sealed_totp_secret = sealed_secret
    user.recovery_code_hashes[:] = recovery_code_hashes
    return [changed_user(user, "one-time code set", [])]


def seal_anew(accounts: AccountTable, sealed_anew: Callable[[bytes, str], bytes | None]) -> list[AccountFact]:
    """Return the users with a second factor that a former key seals, sealed anew with the key in force.

    `sealed_anew` seals a secret anew in its context; None: the key in force seals it already.
    """
    facts = []
    for known in accounts.users():
        sealed = known.sealed_totp_secret and sealed_anew(known.sealed_totp_secret, totp_context(known))
        if sealed:
            user = User()
            user.CopyFrom(known)
            user.sealed_totp_secret = sealed
            facts.append(changed_user(user, "second factor sealed anew", []))
    return facts


def totp_context(user: User) -> str:
    """Return the encryption context of a user's second factor."""
    return f"user/{user.user_id}/totp"


def check_may_have_totp(known: User) -> None:
    """Check that the user may get a second factor. ConflictError: it has one already, or no password."""
    if not known.password_hash:
        raise ConflictError(Code.NO_OWN_CODES)
    if known.sealed_totp_secret:
        raise ConflictError(Code.SECOND_FACTOR_EXISTS)


def end_session(accounts: AccountTable, actor: Actor, request: EndSessionRequest, now_ms: int) -> list[AccountFact]:
    """Return the end of one session of the acting user."""
    user = acting_user(accounts, actor)
    if len(request.session_hash) != _HASH_BYTES or not now_ms <= request.until_ms <= now_ms + MAX_SESSION_MS:
        raise InputError("session_hash must be 32 bytes, and until_ms within 30 days")
    ended = SessionEnded(user_id=user.user_id, session_hash=request.session_hash, until_ms=request.until_ms)
    return [AccountFact(session_ended=ended)]


def acting_user(accounts: AccountTable, actor: Actor) -> User:
    """Return the user who acts. PermissionDeniedError: an operator or an API token acts."""
    check_may(actor, Action.CHANGE_OWN_ACCOUNT)
    return user_by_id(accounts, actor.name.removeprefix("user/"))


def user_by_id(accounts: AccountTable, user_id: str) -> User:
    """Return a user. NotFoundError: there is none with this id."""
    user = accounts.user(user_id)
    if user is None:
        raise NotFoundError(Code.NO_SUCH_USER, user_id=user_id)
    return user


def _administrator(user: User) -> PendingChange:
    return PendingChange(administrator=user.user_id, settings=[f"login {user.login}", "administrator on"])


def _with_password(known: User, password_hash: str, used_link_id: str = "") -> AccountFact:
    user = User()
    user.CopyFrom(known)
    user.password_hash = password_hash
    user.session_epoch += 1
    fact = changed_user(user, "password set", [])
    fact.user.used_link_id = used_link_id
    return fact


def changed_user(user: User, action: str, settings: Sequence[str]) -> AccountFact:
    """Return the fact of a changed copy of a user."""
    user.version += 1
    return AccountFact(user=UserChanged(user=user, action=action, settings=settings))


def _link(user: User, link: SecretText, now_ms: int) -> AccountFact:
    purpose = LinkPurpose.LINK_PURPOSE_PASSWORD_RESET if user.password_hash else LinkPurpose.LINK_PURPOSE_INVITATION
    return AccountFact(
        link=LinkCreated(
            link_id=link.id,
            user_id=user.user_id,
            purpose=purpose,
            token_hash=link.hash,
            expires_ms=now_ms + LINK_MS,
        )
    )


def _set_fields(user: User, request: UpdateUserRequest) -> None:
    if request.HasField("display_name"):
        user.display_name = checked_text("display_name", request.display_name)
    if request.HasField("locale"):
        user.locale = _checked_locale(request.locale)
    if request.HasField("zone"):
        user.zone = _checked_zone(request.zone)
    if request.HasField("mail_address"):
        user.mail_address = checked_mail_address(request.mail_address)
    if request.HasField("administrator"):
        user.administrator = request.administrator
    if request.HasField("disabled"):
        user.disabled = request.disabled


def _has_administrator(accounts: AccountTable, changed: User) -> bool:
    """Return whether an administrator who can log in is left after the change, or there was none before it."""
    others = [user for user in accounts.users() if user.administrator and not user.disabled and _has_log_in(user)]
    left = [user for user in others if user.user_id != changed.user_id]
    return not others or bool(left) or (changed.administrator and not changed.disabled)


def _has_log_in(user: User) -> bool:
    """Return whether the user has chosen a password, or logs in by OpenID Connect."""
    return bool(user.password_hash) or user.HasField("subject")


def _settings_changed(before: User, after: User) -> list[str]:
    texts = [
        f"{name} {getattr(after, name)}"
        for name in ("display_name", "locale", "zone", "mail_address")
        if getattr(after, name) != getattr(before, name)
    ]
    switches = [
        f"{name} {'on' if getattr(after, name) else 'off'}"
        for name in ("administrator", "disabled")
        if getattr(after, name) != getattr(before, name)
    ]
    codes = ["second factor removed"] if before.sealed_totp_secret and not after.sealed_totp_secret else []
    sessions = ["sessions ended"] if after.session_epoch != before.session_epoch else []
    return [*texts, *switches, *codes, *sessions]


def _checked_login(login: str) -> str:
    if not _LOGIN.fullmatch(login) or not login.isprintable():
        raise InputError(Code.WRONG_LOGIN, at="login", most=64)
    return login


def checked_mail_address(address: str) -> str:
    """Return the address if it may be one, or is empty. InputError: the text is no mail address."""
    if address and not _MAIL_ADDRESS.fullmatch(address):
        raise InputError(Code.WRONG_MAIL_ADDRESS, at="mail_address")
    return address


def _checked_locale(locale: str) -> str:
    if locale and not _LOCALE.fullmatch(locale):
        raise InputError("locale must be a language tag such as en or zh-CN")
    return locale


def _checked_zone(zone: str) -> str:
    try:
        return ZoneInfo(zone).key if zone else zone
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise InputError(Code.UNKNOWN_ZONE, at="zone") from None
