"""Decisions about log-ins, by password and by an OpenID Connect provider. Pure."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from protos.accounts.v1.accounts_pb2 import (
    AccountFact,
    LoggedIn,
    LogInFact,
    LogInFailed,
    LogInMethod,
    Subject,
    Team,
    TokenUsed,
    User,
)
from protos.accounts.v1.service_pb2 import GroupRoles, LogInResult, LogInWithSubjectRequest
from services.accounts.decide import MAX_SUBJECT, changed_user, checked_mail_address
from services.accounts.decide_teams import with_role
from services.accounts.store import AccountTable
from services.domain.recorded_reasons import FixedReason
from services.domain.text import checked_text
from services.errors import InputError

TOKEN_USE_MS = 3_600_000
"""The use of an API token is noted once in this time."""


@dataclass(frozen=True, slots=True)
class LogInAttempt:
    """An attempt to log in, after password and code were compared with those of `user`; None: the name is unknown.

    `totp_step`: the interval whose one-time code was given, or 0. `code_hash`: the hash of the given code, for recovery
    codes. `only_administrators`: everybody else is refused.
    """

    user: User | None
    is_password_right: bool
    is_code_given: bool = False
    totp_step: int = 0
    code_hash: bytes = b""
    only_administrators: bool = False


def decide_log_in(accounts: AccountTable, attempt: LogInAttempt) -> tuple["LogInResult.ValueType", list[LogInFact]]:
    """Return the answer and the fact. A one-time code or a recovery code is accepted once."""
    if attempt.user is None:
        return failed("", FixedReason.UNKNOWN_NAME)
    user = accounts.user(attempt.user.user_id)
    if user is None or not _has_same_secrets(user, attempt.user):
        return failed(attempt.user.user_id, FixedReason.CHANGED_MEANWHILE)
    if not attempt.is_password_right:
        return failed(user.user_id, FixedReason.WRONG_PASSWORD)
    if user.disabled:
        return failed(user.user_id, FixedReason.DISABLED)
    if attempt.only_administrators and not user.administrator:
        return failed(user.user_id, FixedReason.NO_PASSWORD_ALLOWED)
    if not user.sealed_totp_secret:
        return logged_in(user, LogInMethod.LOG_IN_METHOD_PASSWORD)
    if not attempt.is_code_given:
        return LogInResult.LOG_IN_RESULT_CODE_NEEDED, []
    return _with_code(accounts, user, attempt)


def decide_token_use(accounts: AccountTable, token_id: str, now_ms: int) -> list[LogInFact]:
    """Return the fact that an API token was used; nothing if one was noted within the hour, or the token is unknown."""
    if accounts.token(token_id) is None or now_ms - accounts.last_use_ms(token_id) < TOKEN_USE_MS:
        return []
    return [LogInFact(token_used=TokenUsed(token_id=token_id))]


def _with_code(
    accounts: AccountTable, user: User, attempt: LogInAttempt
) -> tuple["LogInResult.ValueType", list[LogInFact]]:
    if attempt.totp_step:
        if attempt.totp_step <= accounts.log_in_state(user.user_id).totp_step:
            return failed(user.user_id, FixedReason.USED_CODE)
        return logged_in(user, LogInMethod.LOG_IN_METHOD_ONE_TIME_CODE, totp_step=attempt.totp_step)
    if attempt.code_hash not in user.recovery_code_hashes:
        return failed(user.user_id, FixedReason.WRONG_CODE)
    if accounts.is_used(attempt.code_hash):
        return failed(user.user_id, FixedReason.USED_CODE)
    return logged_in(user, LogInMethod.LOG_IN_METHOD_RECOVERY_CODE, code_hash=attempt.code_hash)


def _has_same_secrets(user: User, compared: User) -> bool:
    return (
        user.password_hash == compared.password_hash
        and user.sealed_totp_secret == compared.sealed_totp_secret
        and user.recovery_code_hashes == compared.recovery_code_hashes
    )


def logged_in(
    user: User, method: "LogInMethod.ValueType", *, totp_step: int = 0, code_hash: bytes = b""
) -> tuple["LogInResult.ValueType", list[LogInFact]]:
    """Return the answer and the fact of a log-in that succeeds."""
    fact = LoggedIn(
        user_id=user.user_id,
        method=method,
        totp_step=totp_step,
        recovery_code_hash=code_hash,
        session_epoch=user.session_epoch,
    )
    return LogInResult.LOG_IN_RESULT_OK, [LogInFact(logged_in=fact)]


def failed(user_id: str, reason: FixedReason) -> tuple["LogInResult.ValueType", list[LogInFact]]:
    """Return the answer and the fact of a log-in that is refused; `user_id` is empty where nobody has the name."""
    fact = LogInFailed(user_id=user_id, reason=reason)
    return LogInResult.LOG_IN_RESULT_REFUSED, [LogInFact(failed=fact)]


# Decisions about users of an OpenID Connect provider, who are created at the first log-in. Pure.

_MAX_LOGIN = 64
_MAX_NAME = 64
_BY_GROUPS = "by the provider's groups"

Answer = tuple["LogInResult.ValueType", Sequence[AccountFact | LogInFact]]


def decide_log_in_with_subject(
    accounts: AccountTable, request: LogInWithSubjectRequest, new_user_id: str, now_ms: int
) -> Answer:
    """Return the answer, and the facts of the user, of the roles and of the log-in."""
    known = accounts.user_of_subject(request.subject)
    gives_nothing = request.HasField("roles") and not request.roles.administrator and not request.roles.teams
    if known is None and (gives_nothing or not request.login):
        return failed("", FixedReason.NO_GROUP_WITH_A_ROLE if gives_nothing else FixedReason.UNKNOWN_NAME)
    if known is not None and known.disabled:
        return failed(known.user_id, FixedReason.DISABLED)
    user = User()
    user.CopyFrom(known or _new_user(accounts, request, new_user_id, now_ms))
    facts = [*_user_facts(user, request, is_new=known is None, ends_sessions=gives_nothing)]
    if request.HasField("roles"):
        facts += _role_facts(accounts, user, request.roles)
    if gives_nothing:
        result, noted = failed(user.user_id, FixedReason.NO_GROUP_WITH_A_ROLE)
    else:
        result, noted = logged_in(user, LogInMethod.LOG_IN_METHOD_SUBJECT)
    return result, facts if request.is_renewal and not gives_nothing else [*facts, *noted]


def decide_end_of_sessions(accounts: AccountTable, subject: Subject) -> list[AccountFact]:
    """Return the user of the subject with another session epoch; nothing if there is none."""
    known = accounts.user_of_subject(subject)
    if known is None:
        return []
    user = User()
    user.CopyFrom(known)
    user.session_epoch += 1
    return [changed_user(user, "set", ["sessions ended", "logged out by the provider"])]


def _new_user(accounts: AccountTable, request: LogInWithSubjectRequest, user_id: str, now_ms: int) -> User:
    issuer = checked_text("issuer", request.subject.issuer, most=MAX_SUBJECT)
    subject = checked_text("subject", request.subject.subject, most=MAX_SUBJECT)
    login = _free_login(accounts, request.login)
    return User(
        user_id=user_id,
        login=login,
        display_name=_printable(request.display_name)[:_MAX_NAME].strip() or login,
        subject=Subject(issuer=issuer, subject=subject),
        created_ms=now_ms,
    )


def _user_facts(
    user: User, request: LogInWithSubjectRequest, *, is_new: bool, ends_sessions: bool
) -> Sequence[AccountFact]:
    """Return the user as changed by the log-in; nothing if all is as it was."""
    settings = []
    by_groups = request.HasField("roles")
    if user.roles_by_groups != by_groups:
        user.roles_by_groups = by_groups
        settings.append("roles by the provider's groups" if by_groups else "roles by hand")
    if by_groups and user.administrator != request.roles.administrator:
        user.administrator = request.roles.administrator
        settings += [f"administrator {'on' if user.administrator else 'off'}", _BY_GROUPS]
    if request.mail_address and request.mail_address != user.mail_address:
        with suppress(InputError):
            user.mail_address = checked_mail_address(request.mail_address)
            settings.append(f"mail_address {user.mail_address}")
    if ends_sessions:
        user.session_epoch += 1
        settings.append("sessions ended")
    if is_new:
        return [changed_user(user, "created", ["at the first log-in", *settings])]
    return [changed_user(user, "set", settings)] if settings else []


def _role_facts(accounts: AccountTable, user: User, roles: GroupRoles) -> list[AccountFact]:
    """Return the teams in which the role of the user changes; of several roles in a team the highest counts."""
    wanted: dict[str, int] = {}
    for given in roles.teams:
        team = accounts.team(given.team) or accounts.team_of_name(given.team)
        if team is not None:
            wanted[team.team_id] = max(given.role, wanted.get(team.team_id, 0))
    facts = []
    for known in accounts.teams():
        team = Team()
        team.CopyFrom(known)
        facts += with_role(team, user, wanted.get(team.team_id, 0), _BY_GROUPS)
    return facts


def _free_login(accounts: AccountTable, wish: str) -> str:
    """Return the wished login name, without characters that it may not have, and with a number if it is in use."""
    base = (
        "".join("-" if sign == "/" else sign for sign in _printable(wish) if not sign.isspace())[:_MAX_LOGIN] or "user"
    )
    login, number = base, 1
    while accounts.user_of_login(login):
        number += 1
        login = f"{base[: _MAX_LOGIN - 8]}-{number}"
    return login


def _printable(text: str) -> str:
    return "".join(sign for sign in text if sign.isprintable())
