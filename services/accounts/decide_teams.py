"""Decisions about teams, their members, apps and API tokens: the facts that follow from what an actor asks for. Pure.

Errors as in `decide`.
"""

from protos.accounts.v1.accounts_pb2 import (
    AccountFact,
    AppGiven,
    ApprovalRules,
    Member,
    Team,
    TeamChanged,
    TeamDevice,
    Token,
    TokenCreated,
    TokenRevoked,
    User,
)
from protos.accounts.v1.service_pb2 import (
    CreateTokenRequest,
    GiveAppRequest,
    SetMemberRequest,
    SetTestDevicesRequest,
    UpdateTeamRequest,
)
from services.accounts.decide import check_may, user_by_id
from services.accounts.store import AccountTable
from services.domain.accounts.permissions import Action, Actor, Role
from services.domain.accounts.secret_texts import SecretText
from services.domain.text import checked_text
from services.runtime.errors import ConflictError, InputError, NotFoundError

MAX_TEST_DEVICES = 20
_MAX_TOKEN = 400
_ROLES = {int(role) for role in Role}


def create_team(accounts: AccountTable, actor: Actor, name: str, team_id: str, now_ms: int) -> list[AccountFact]:
    check_may(actor, Action.MANAGE_TEAMS)
    team = Team(team_id=team_id, name=_free_name(accounts, name, team_id), created_ms=now_ms)
    return [_changed(team, "created", [f"name {team.name}"])]


def update_team(accounts: AccountTable, actor: Actor, request: UpdateTeamRequest) -> list[AccountFact]:
    """Return the team with another name or other approval rules; nothing if all is as asked for."""
    known, team = team_by_id(accounts, request.team_id), _copy(accounts, request.team_id)
    check_may(actor, Action.MANAGE_TEAM, team.team_id)
    settings = []
    if request.HasField("name") and request.name != team.name:
        team.name = _free_name(accounts, request.name, team.team_id)
        settings.append(f"name {team.name}")
    if request.HasField("rules"):
        team.rules.CopyFrom(request.rules)
        if _rules_text(team.rules) != _rules_text(known.rules):
            settings.append(f"approval {_rules_text(team.rules)}")
    return [_changed(team, "set", settings)] if settings else []


def set_member(accounts: AccountTable, actor: Actor, request: SetMemberRequest) -> list[AccountFact]:
    """Return the team with the user in this role, or without the user; nothing if all is as asked for."""
    team = _copy(accounts, request.team_id)
    check_may(actor, Action.MANAGE_TEAM, team.team_id)
    user = user_by_id(accounts, request.user_id)
    if user.roles_by_groups:
        raise ConflictError(f"the roles of {user.login!r} follow from the groups of the OpenID Connect provider")
    return with_role(team, user, request.role)


def with_role(team: Team, user: User, role: int, *notes: str) -> list[AccountFact]:
    """Return the team, which is changed, with the user in this role, or without the user for 0.

    Nothing if all is so already. `notes` are added to the fact's settings.
    """
    present = next((member.role for member in team.members if member.user_id == user.user_id), 0)
    if present == role:
        return []
    others = [member for member in team.members if member.user_id != user.user_id]
    del team.members[:]
    if not role:
        team.members.extend(others)
        return [_changed(team, "member removed", [user.login, *notes])]
    checked = _checked_role(role)
    team.members.extend([*others, Member(user_id=user.user_id, role=checked.value)])
    return [_changed(team, "member set", [f"{user.login} {checked.name.lower()}", *notes])]


def set_test_devices(accounts: AccountTable, actor: Actor, request: SetTestDevicesRequest) -> list[AccountFact]:
    """Return the team with these test devices, or without those that have no name; nothing if all is as asked for."""
    team = _copy(accounts, request.team_id)
    check_may(actor, Action.SEND, team.team_id)
    known = {(device.appkey, device.token): device.name for device in team.test_devices}
    changed = dict(known)
    for device in request.devices:
        changed.pop((device.appkey, device.token), None)
        if device.name:
            changed[device.appkey, device.token] = _checked_device(accounts, team, device).name
    if len(changed) > MAX_TEST_DEVICES:
        raise ConflictError(f"a team has at most {MAX_TEST_DEVICES} test devices; remove some first")
    if changed == known:
        return []
    added = [f"{' '.join(place)} {name}" for place, name in changed.items() if known.get(place) != name]
    removed = [" ".join(place) for place in known if place not in changed]
    devices = [TeamDevice(appkey=appkey, token=token, name=name) for (appkey, token), name in changed.items()]
    del team.test_devices[:]
    team.test_devices.extend(sorted(devices, key=lambda each: (each.appkey, each.name, each.token)))
    return [_changed(team, "test device set" if added else "test device removed", [*added, *removed])]


def _checked_device(accounts: AccountTable, team: Team, device: TeamDevice) -> TeamDevice:
    if accounts.given_app(device.appkey).team_id != team.team_id:
        raise ConflictError(f"app {device.appkey} does not belong to the team")
    if not 1 <= len(device.token) <= _MAX_TOKEN:
        raise InputError(f"token must have 1 to {_MAX_TOKEN} characters")
    checked_text("name", device.name)
    return device


def give_app(accounts: AccountTable, actor: Actor, request: GiveAppRequest, *, app_exists: bool) -> list[AccountFact]:
    """Return the fact that the app belongs to the team; nothing if it does already."""
    check_may(actor, Action.MANAGE_TEAMS)
    if not app_exists:
        raise NotFoundError(f"there is no app with appkey {request.appkey!r}")
    if request.team_id:
        team_by_id(accounts, request.team_id)
    known = accounts.given_app(request.appkey)
    if known.team_id == request.team_id:
        return []
    return [AccountFact(app=AppGiven(appkey=request.appkey, team_id=request.team_id, version=known.version + 1))]


def create_token(
    accounts: AccountTable, actor: Actor, request: CreateTokenRequest, text: SecretText, now_ms: int
) -> list[AccountFact]:
    """Return the new API token; its text is in no fact."""
    team = team_by_id(accounts, request.team_id)
    check_may(actor, Action.MANAGE_TOKENS, team.team_id)
    name = checked_text("name", request.name)
    if any(token.name == name for token in accounts.tokens([team.team_id])):
        raise ConflictError(f"team {team.name} has a token {name!r} already; revoke it first")
    token = Token(
        token_id=text.id,
        team_id=team.team_id,
        name=name,
        role=_checked_role(request.role).value,
        token_hash=text.hash,
        created_ms=now_ms,
        expires_ms=now_ms + 1000 * request.expires_in_s if request.expires_in_s else 0,
        created_by=actor.name.removeprefix("user/"),
    )
    return [AccountFact(token=TokenCreated(token=token))]


def revoke_token(accounts: AccountTable, actor: Actor, token_id: str) -> list[AccountFact]:
    token = accounts.token(token_id)
    if token is None:
        raise NotFoundError(f"there is no API token with id {token_id!r}, or it is revoked")
    check_may(actor, Action.MANAGE_TOKENS, token.team_id)
    return [AccountFact(token_revoked=TokenRevoked(token_id=token_id, team_id=token.team_id))]


def team_by_id(accounts: AccountTable, team_id: str) -> Team:
    """Return a team. NotFoundError: there is none with this id."""
    team = accounts.team(team_id)
    if team is None:
        raise NotFoundError(f"there is no team with id {team_id!r}")
    return team


def _copy(accounts: AccountTable, team_id: str) -> Team:
    team = Team()
    team.CopyFrom(team_by_id(accounts, team_id))
    return team


def _changed(team: Team, action: str, settings: list[str]) -> AccountFact:
    team.version += 1
    return AccountFact(team=TeamChanged(team=team, action=action, settings=settings))


def _free_name(accounts: AccountTable, name: str, team_id: str) -> str:
    other = accounts.team_of_name(checked_text("name", name))
    if other is not None and other.team_id != team_id:
        raise ConflictError(f"there is a team {other.name!r} already")
    return name


def _checked_role(role: int) -> Role:
    if role not in _ROLES:
        raise InputError("role must be viewer, sender, approver or administrator")
    return Role(role)


def _rules_text(rules: ApprovalRules) -> str:
    parts = ["broadcasts"] if rules.broadcasts else []
    if rules.HasField("above_devices"):
        parts.append(f"above {rules.above_devices} devices")
    return ", ".join(parts) or "never"
