"""Permissions of accounts: every action by every role, and the actions that no API token or disabled user may do."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protos.accounts.v1.accounts_pb2 import ApprovalRules
from services.domain.approval import Reach, approval_need, loosens, stricter_rules
from services.domain.permissions import OPERATOR, Action, Actor, Role, may

TEAM, OTHER = "team", "other"
TABLE = {
    #                          viewer sender approver administrator  of the installation, token of an administrator
    Action.VIEW:                (True,  True,  True,  True,  True,  True),
    Action.VIEW_DEVICES:        (True,  True,  True,  True,  True,  True),
    Action.EXPORT_PERSON:       (False, False, False, True,  True,  True),
    Action.ERASE_PERSON:        (False, False, False, True,  True,  True),
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


SHARE_80 = ApprovalRules(broadcasts=True, share_percent=80)


@pytest.mark.parametrize(
    ("rules", "reach", "needed"),
    [
        (ApprovalRules(), Reach("a", 10**9, 10**9), False),
        (ApprovalRules(broadcasts=True), Reach("a", 0, 0), True),
        (ApprovalRules(broadcasts=True), Reach("a", 49, 100), False),
        (ApprovalRules(broadcasts=True), Reach("a", 50, 100), True),
        (ApprovalRules(broadcasts=True), Reach("a", 1, 100, earlier_devices=49), True),
        (ApprovalRules(broadcasts=True), Reach("a", 1, 3), False),
        (SHARE_80, Reach("a", 79, 100), False),
        (SHARE_80, Reach("a", 80, 100), True),
        (ApprovalRules(above_devices=100), Reach("a", 100, 100), False),
        (ApprovalRules(above_devices=100), Reach("a", 101, 1000), True),
        (ApprovalRules(above_devices=0), Reach("a", 1, 1), True),
        (ApprovalRules(broadcasts=True, above_devices=100), Reach("a", 1, 1), True),
    ],
)
def test_which_pushes_need_an_approval(rules: ApprovalRules, reach: Reach, needed: bool) -> None:
    assert (approval_need(rules, [reach]) is not None) == needed


def test_pushes_to_several_apps_count_together_for_the_number_and_apart_for_the_share() -> None:
    both = [Reach("a", 30, 100), Reach("b", 30, 100)]
    assert approval_need(ApprovalRules(broadcasts=True), both) is None
    assert approval_need(ApprovalRules(above_devices=59), both) is not None
    assert approval_need(ApprovalRules(above_devices=100), both, earlier_devices=40) is None
    assert approval_need(ApprovalRules(above_devices=100), both, earlier_devices=41) is not None


_RULES = st.builds(
    ApprovalRules,
    broadcasts=st.booleans(),
    above_devices=st.none() | st.integers(0, 3),
    share_percent=st.none() | st.integers(1, 100),
)
_REACHES = st.integers(0, 3).flatmap(
    lambda every: st.builds(Reach, st.just("a"), st.integers(0, every), st.just(every))
)


@given(_RULES, _RULES)
def test_a_change_of_rules_loosens_them_exactly_if_some_push_needs_no_approval_any_more(
    before: ApprovalRules, after: ApprovalRules
) -> None:
    every = [Reach("a", devices, all_of_them) for all_of_them in (100, 4) for devices in range(all_of_them + 1)]
    freed = any(approval_need(before, [each]) and not approval_need(after, [each]) for each in every)
    assert loosens(before, after) or not freed
    if not loosens(before, after):
        assert not freed


@given(_RULES, _RULES, _REACHES)
def test_the_stricter_of_two_rules_demands_what_one_of_them_demands(
    one: ApprovalRules, other: ApprovalRules, reach: Reach
) -> None:
    wanted = bool(approval_need(one, [reach]) or approval_need(other, [reach]))
    assert bool(approval_need(stricter_rules(one, other), [reach])) == wanted
    assert not loosens(one, stricter_rules(one, other))
