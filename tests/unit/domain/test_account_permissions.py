"""Permissions of accounts: every action by every role, and the actions that no API token or disabled user may do."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protos.accounts.v1.accounts_pb2 import ApprovalRules
from services.domain.accounts.approval import needs_approval
from services.domain.accounts.permissions import OPERATOR, Action, Actor, Role, may

TEAM, OTHER = "team", "other"
TABLE = {
    #                          viewer sender approver administrator  of the installation, token of an administrator
    Action.VIEW:                (True,  True,  True,  True,  True,  True),
    Action.VIEW_DEVICES:        (True,  True,  True,  True,  True,  True),
    Action.SEND:                (False, True,  True,  True,  True,  True),
    Action.APPROVE:             (False, False, True,  True,  True,  False),
    Action.PAUSE:               (False, False, True,  True,  True,  True),
    Action.CHANGE_APP:          (False, False, False, True,  True,  True),
    Action.MANAGE_TEAM:         (False, False, False, True,  True,  False),
    Action.MANAGE_TOKENS:       (False, False, False, True,  True,  False),
    Action.CHANGE_OWN_ACCOUNT:  (True,  True,  True,  True,  True,  False),
    Action.MANAGE_USERS:        (False, False, False, False, True,  False),
    Action.MANAGE_TEAMS:        (False, False, False, False, True,  False),
    Action.MANAGE_INSTALLATION: (False, False, False, False, True,  False),
}  # fmt: skip

actors = st.builds(
    Actor,
    name=st.sampled_from(["user/1", "token/1"]),
    is_administrator=st.booleans(),
    is_disabled=st.booleans(),
    roles=st.dictionaries(st.sampled_from([TEAM, OTHER]), st.sampled_from(Role)),
)


@pytest.mark.parametrize("action", Action)
def test_every_action_by_every_role(action: Action) -> None:
    members = [Actor("user/1", roles={TEAM: role}) for role in Role]
    administrator = Actor("user/1", is_administrator=True)
    token = Actor("token/1", roles={TEAM: Role.ADMINISTRATOR})
    assert tuple(may(actor, action, TEAM) for actor in (*members, administrator, token)) == TABLE[action]
    assert may(OPERATOR, action, TEAM) == (action != Action.CHANGE_OWN_ACCOUNT)


@given(actor=actors, action=st.sampled_from(Action), team=st.sampled_from([TEAM, OTHER, ""]))
def test_rules_that_hold_for_every_account(actor: Actor, action: Action, team: str) -> None:
    allowed = may(actor, action, team)
    if actor.is_disabled:
        assert not allowed
    if not actor.is_administrator and allowed and action != Action.CHANGE_OWN_ACCOUNT:
        assert team in actor.roles
        higher = {**actor.roles, team: Role.ADMINISTRATOR}
        assert may(replace(actor, roles=higher), action, team)
        without = {other: role for other, role in actor.roles.items() if other != team}
        assert not may(replace(actor, roles=without), action, team)


@pytest.mark.parametrize(
    ("rules", "is_broadcast", "devices", "needed"),
    [
        (ApprovalRules(), True, 10**9, False),
        (ApprovalRules(broadcasts=True), True, 0, True),
        (ApprovalRules(broadcasts=True), False, 10**9, False),
        (ApprovalRules(above_devices=100), False, 100, False),
        (ApprovalRules(above_devices=100), False, 101, True),
        (ApprovalRules(above_devices=0), False, 1, True),
        (ApprovalRules(broadcasts=True, above_devices=100), True, 1, True),
    ],
)
def test_which_pushes_need_an_approval(rules: ApprovalRules, is_broadcast: bool, devices: int, needed: bool) -> None:
    assert needs_approval(rules, is_broadcast=is_broadcast, devices=devices) == needed
