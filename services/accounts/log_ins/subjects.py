"""Decisions about users of an OpenID Connect provider, who are created at the first log-in. Pure."""

from collections.abc import Sequence

from protos.accounts.v1.accounts_pb2 import AccountFact, LogInFact, LogInMethod, Subject, Team, User
from protos.accounts.v1.service_pb2 import GroupRoles, LogInResult, LogInWithSubjectRequest
from services.accounts.decide import MAX_SUBJECT, changed_user
from services.accounts.decide_teams import with_role
from services.accounts.log_ins.decide import failed, logged_in
from services.accounts.store import AccountTable
from services.domain.recorded_reasons import FixedReason
from services.domain.text import checked_text

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
    """Return the wished login name, without signs that it may not have, and with a number if it is in use."""
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
