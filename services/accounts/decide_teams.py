"""Decisions about teams, their members, apps and API tokens: the facts that follow from what an actor asks for. Pure.

Errors as in `decide`.
"""

from typing import assert_never

from protos.accounts.v1.accounts_pb2 import (
    AccountFact,
    AppChange,
    AppGiven,
    ApprovalRules,
    ChangeDecided,
    ErasureChange,
    Member,
    MemberChange,
    PendingChange,
    RulesChange,
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
    DecideChangeRequest,
    GiveAppRequest,
    SetMemberRequest,
    SetTestDevicesRequest,
    UpdateTeamRequest,
    UpdateUserRequest,
)
from services.accounts.decide import author_names, check_may, proposed, reset_password, update_user, user_by_id
from services.accounts.store import AccountTable
from services.domain.approval import MAX_SHARE_PERCENT, loosens, second_roles, share_percent, stricter_rules
from services.domain.permissions import OPERATOR, Action, Actor, Role
from services.domain.secret_texts import SecretText
from services.domain.text import checked_text
from services.errors import Code, ConflictError, InputError, NotFoundError, PermissionDeniedError

MAX_TEST_DEVICES = 20
_MAX_TOKEN = 400
_ROLES = {int(role) for role in Role}


def create_team(accounts: AccountTable, actor: Actor, name: str, team_id: str, now_ms: int) -> list[AccountFact]:
    check_may(actor, Action.MANAGE_TEAMS)
    team = Team(team_id=team_id, name=_free_name(accounts, name, team_id), created_ms=now_ms)
    return [_changed(team, "created", [f"name {team.name}"])]


def update_team(accounts: AccountTable, actor: Actor, request: UpdateTeamRequest, now_ms: int) -> list[AccountFact]:
    """Return the team with another name or other approval rules; nothing if all is as asked for.

    Tighter rules hold at once; looser ones wait for another administrator, unless an operator acts.
    """
    known, team = team_by_id(accounts, request.team_id), _copy(accounts, request.team_id)
    check_may(actor, Action.MANAGE_TEAM, team.team_id)
    settings = []
    waiting: list[AccountFact] = []
    if request.HasField("name") and request.name != team.name:
        team.name = _free_name(accounts, request.name, team.team_id)
        settings.append(f"name {team.name}")
    if request.HasField("rules"):
        _check_rules(request.rules)
        is_held = not actor.is_operator and loosens(known.rules, request.rules)
        team.rules.CopyFrom(stricter_rules(known.rules, request.rules) if is_held else request.rules)
        if is_held:
            change = RulesChange(before=team.rules, after=request.rules)
            text = f"approval {_rules_text(request.rules)}"
            pending = PendingChange(team_id=team.team_id, rules=change, settings=[text])
            waiting = [proposed(accounts, actor, pending, now_ms)]
        if _rules_text(team.rules) != _rules_text(known.rules):
            settings.append(f"approval {_rules_text(team.rules)}")
    return [*([_changed(team, "set", settings)] if settings else []), *waiting]


def set_member(accounts: AccountTable, actor: Actor, request: SetMemberRequest, now_ms: int) -> list[AccountFact]:
    """Return the team with the user in this role, or without the user; nothing if all is as asked for.

    In a team with approval rules another administrator has to confirm a new approver, and the loss of the last approver
    beside the actor, unless an operator acts. Where erasures need a second person, the same holds for administrators.
    """
    team = _copy(accounts, request.team_id)
    check_may(actor, Action.MANAGE_TEAM, team.team_id)
    user = user_by_id(accounts, request.user_id)
    if user.roles_by_groups:
        raise ConflictError(Code.ROLES_OF_PROVIDER, login=user.login)
    if not actor.is_operator and any(
        _changes_second_persons(accounts, actor, team, user, request.role, least) for least in second_roles(team.rules)
    ):
        role = _checked_role(request.role).name.lower() if request.role else "no role"
        change = MemberChange(user_id=user.user_id, role=request.role)
        pending = PendingChange(team_id=team.team_id, member=change, settings=[f"{user.login} {role}"])
        return [proposed(accounts, actor, pending, now_ms)]
    return with_role(team, user, request.role)


def _changes_second_persons(
    accounts: AccountTable, actor: Actor, team: Team, user: User, role: int, least: Role
) -> bool:
    """Return whether the user gets the role `least` or a higher one, or was the last one with it beside the actor."""
    before = {member.user_id for member in team.members if member.role >= least}
    if role >= least:
        return user.user_id not in before and not user.administrator
    others = {each for each in before if f"user/{each}" != actor.name}
    enabled = {each for each in others if (known := accounts.user(each)) and not known.disabled}
    return enabled == {user.user_id}


def with_role(team: Team, user: User, role: int, *notes: str) -> list[AccountFact]:
    """Change the team: give the user this role, or remove the user for 0. Return the fact, if anything changes.

    `notes` are added to the fact's settings.
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
        raise ConflictError(Code.TOO_MANY_TEST_DEVICES, most=MAX_TEST_DEVICES)
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
        raise ConflictError(Code.APP_OF_OTHER_TEAM, appkey=device.appkey)
    if not 1 <= len(device.token) <= _MAX_TOKEN:
        raise InputError(Code.WRONG_LENGTH, at="token", least=1, most=_MAX_TOKEN)
    checked_text("name", device.name)
    return device


def give_app(
    accounts: AccountTable, actor: Actor, request: GiveAppRequest, now_ms: int, *, app_exists: bool
) -> list[AccountFact]:
    """Return the fact that the app belongs to the team; nothing if it does already.

    Where the other team has looser approval rules, or there is none, another administrator has to confirm it, unless an
    operator acts.
    """
    check_may(actor, Action.MANAGE_TEAMS)
    if not app_exists:
        raise NotFoundError(Code.NO_SUCH_APP, appkey=request.appkey)
    if request.team_id:
        team_by_id(accounts, request.team_id)
    known = accounts.given_app(request.appkey)
    if known.team_id == request.team_id:
        return []
    before, after = (_rules_of(accounts, team_id) for team_id in (known.team_id, request.team_id))
    if not actor.is_operator and loosens(before, after):
        team = accounts.team(request.team_id)
        text = f"app {request.appkey} to {'team ' + team.name if team else 'no team'}"
        change = AppChange(appkey=request.appkey, team_id=request.team_id)
        return [proposed(accounts, actor, PendingChange(team_id=known.team_id, app=change, settings=[text]), now_ms)]
    return [AccountFact(app=AppGiven(appkey=request.appkey, team_id=request.team_id, version=known.version + 1))]


def create_token(
    accounts: AccountTable, actor: Actor, request: CreateTokenRequest, text: SecretText, now_ms: int
) -> list[AccountFact]:
    """Return the new API token; its text is in no fact."""
    team = team_by_id(accounts, request.team_id)
    check_may(actor, Action.MANAGE_TOKENS, team.team_id)
    name = checked_text("name", request.name)
    if any(token.name == name for token in accounts.tokens([team.team_id])):
        raise ConflictError(Code.TOKEN_NAME_TAKEN, team=team.name, name=name)
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
        raise NotFoundError(Code.NO_SUCH_TOKEN, token_id=token_id)
    check_may(actor, Action.MANAGE_TOKENS, token.team_id)
    return [AccountFact(token_revoked=TokenRevoked(token_id=token_id, team_id=token.team_id))]


def decide_change(
    accounts: AccountTable, actor: Actor, request: DecideChangeRequest, link: SecretText, now_ms: int
) -> list[AccountFact]:
    """Return the facts of a change that another administrator confirms, and then its decision; or its rejection.

    NotFoundError: it does not wait any more. ConflictError: what it changes was changed since it was proposed.
    """
    change = next((each for each in accounts.changes(now_ms) if each.change_id == request.change_id), None)
    if change is None:
        raise NotFoundError(Code.CHANGE_DECIDED)
    is_own = actor.name in author_names(accounts, change.proposed_by)
    if not request.confirmed and is_own:
        return [_decided(change, confirmed=False)]
    if change.team_id:
        check_may(actor, Action.MANAGE_TEAM, change.team_id)
    else:
        check_may(actor, Action.MANAGE_USERS)
    if not request.confirmed:
        return [_decided(change, confirmed=False)]
    if is_own:
        raise PermissionDeniedError(Code.OWN_CHANGE)
    return [*_confirmed(accounts, change, link, now_ms), _decided(change, confirmed=True)]


def _confirmed(accounts: AccountTable, change: PendingChange, link: SecretText, now_ms: int) -> list[AccountFact]:
    """Return the facts of a confirmed change: two administrators together may do what an operator may alone."""
    outdated = ConflictError(Code.CHANGE_OUTDATED)
    match change.WhichOneof("change"):
        case "rules":
            if team_by_id(accounts, change.team_id).rules != change.rules.before:
                raise outdated
            asked = UpdateTeamRequest(team_id=change.team_id, rules=change.rules.after)
            return update_team(accounts, OPERATOR, asked, now_ms)
        case "member":
            member = change.member
            asked_role = SetMemberRequest(team_id=change.team_id, user_id=member.user_id, role=member.role)
            return set_member(accounts, OPERATOR, asked_role, now_ms)
        case "app":
            if accounts.given_app(change.app.appkey).team_id != change.team_id:
                raise outdated
            given = GiveAppRequest(appkey=change.app.appkey, team_id=change.app.team_id)
            return give_app(accounts, OPERATOR, given, now_ms, app_exists=True)
        case "administrator":
            asked_user = UpdateUserRequest(user_id=change.administrator, administrator=True)
            return update_user(accounts, OPERATOR, asked_user, now_ms)
        case "new_link":
            return reset_password(accounts, OPERATOR, change.new_link, link, now_ms)
        case "erase":  # ErasureSender carries it out
            if accounts.given_app(change.erase.appkey).team_id != change.team_id:
                raise outdated
            return []
        case None:
            raise ConflictError("this change is of a newer version; update the service first")
        case never:
            assert_never(never)


def propose_erasure(accounts: AccountTable, actor: Actor, change: ErasureChange, now_ms: int) -> list[AccountFact]:
    """Return the fact that an erasure waits for another administrator; nothing if the app's team demands none."""
    if not needs_confirmation(accounts, actor, change.appkey):
        return []
    devices = f"{change.devices} device{'' if change.devices == 1 else 's'}"
    settings = [f"erasure {change.erasure_id}", f"app {change.appkey}", devices]
    team_id = accounts.given_app(change.appkey).team_id
    return [proposed(accounts, actor, PendingChange(team_id=team_id, erase=change, settings=settings), now_ms)]


def needs_confirmation(accounts: AccountTable, actor: Actor, appkey: str) -> bool:
    """Return whether an erasure that the actor asks for waits for another administrator.

    PermissionDeniedError: the actor may not erase persons of the app.
    """
    team_id = accounts.given_app(appkey).team_id
    check_may(actor, Action.ERASE_PERSON, team_id)
    return not actor.is_operator and _rules_of(accounts, team_id).erasures


def _decided(change: PendingChange, *, confirmed: bool) -> AccountFact:
    decided = ChangeDecided(
        change_id=change.change_id, team_id=change.team_id, confirmed=confirmed, settings=change.settings
    )
    return AccountFact(change_decided=decided)


def _rules_of(accounts: AccountTable, team_id: str) -> ApprovalRules:
    team = accounts.team(team_id)
    return team.rules if team else ApprovalRules()


def team_by_id(accounts: AccountTable, team_id: str) -> Team:
    """Return a team. NotFoundError: there is none with this id."""
    team = accounts.team(team_id)
    if team is None:
        raise NotFoundError(Code.NO_SUCH_TEAM, team_id=team_id)
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
        raise ConflictError(Code.TEAM_NAME_TAKEN, name=other.name)
    return name


def _checked_role(role: int) -> Role:
    if role not in _ROLES:
        raise InputError("role must be viewer, sender, approver or administrator")
    return Role(role)


def _check_rules(rules: ApprovalRules) -> None:
    if rules.HasField("share_percent") and not 1 <= rules.share_percent <= MAX_SHARE_PERCENT:
        raise InputError(Code.OUT_OF_BOUNDS, at="share_percent", least=1, most=MAX_SHARE_PERCENT)


def _rules_text(rules: ApprovalRules) -> str:
    parts = [f"broadcasts from {share_percent(rules)} %"] if rules.broadcasts else []
    if rules.HasField("above_devices"):
        parts.append(f"above {rules.above_devices} devices")
    if rules.erasures:
        parts.append("erasures")
    return ", ".join(parts) or "never"
