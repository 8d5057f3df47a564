"""Approval by a second person: what needs one, who that may be, and the digest of what is approved."""

import hashlib
from collections.abc import Sequence
from typing import NamedTuple

from protos.accounts.v1.accounts_pb2 import ApprovalRules
from protos.accounts.v1.drafts_pb2 import ApprovalNeed, Draft
from services.domain.permissions import Role

DEFAULT_SHARE_PERCENT = 50
"""The share of an app's devices, in percent, from which on a push is a broadcast, unless the rules name another."""

MAX_SHARE_PERCENT = 100
COUNTED_MS = 3_600_000
"""Time for which a push of an account counts together with later pushes of the account."""


class Reach(NamedTuple):
    """The number of devices that a push to one app reaches, and of all devices of the app.

    `earlier_devices`: the number that the sender's other pushes to the app within COUNTED_MS reached.
    """

    appkey: str
    devices: int
    app_devices: int
    earlier_devices: int = 0


def share_percent(rules: ApprovalRules) -> int:
    """Return the share of an app's devices, in percent, from which on a push is a broadcast."""
    return rules.share_percent if rules.HasField("share_percent") else DEFAULT_SHARE_PERCENT


def second_roles(rules: ApprovalRules) -> list[Role]:
    """Return the lowest role of whoever may be the second person of a team: for pushes, and for erasures."""
    return [*([Role.APPROVER] if has_rules(rules) else []), *([Role.ADMINISTRATOR] if rules.erasures else [])]


def has_rules(rules: ApprovalRules) -> bool:
    """Return whether the rules demand an approval of any push."""
    return rules.broadcasts or rules.HasField("above_devices")


def approval_need(rules: ApprovalRules, reached: Sequence[Reach], earlier_devices: int = 0) -> ApprovalNeed | None:
    """Return why a push needs the approval of a second person; None if it needs none.

    Only the numbers of devices decide, so the wording of an audience makes no difference. A push to an app without
    devices is a broadcast. `earlier_devices`: the number that the sender's other pushes to apps of the team within
    COUNTED_MS reached.
    """
    share = share_percent(rules)
    for each in reached if rules.broadcasts else ():
        if 100 * (each.devices + each.earlier_devices) >= share * each.app_devices:
            return ApprovalNeed(
                rule=ApprovalNeed.RULE_BROADCASTS,
                appkey=each.appkey,
                devices=each.devices,
                earlier_devices=each.earlier_devices,
                app_devices=each.app_devices,
                share_percent=share,
            )
    devices = sum(each.devices for each in reached)
    if rules.HasField("above_devices") and devices + earlier_devices > rules.above_devices:
        return ApprovalNeed(
            rule=ApprovalNeed.RULE_ABOVE_DEVICES,
            devices=devices,
            earlier_devices=earlier_devices,
            above_devices=rules.above_devices,
        )
    return None


def stricter_rules(one: ApprovalRules, other: ApprovalRules) -> ApprovalRules:
    """Return rules that demand a second person for everything for which `one` or `other` demands it.

    The share is the lower one of the rules under which broadcasts need an approval; without such rules that of `other`.
    """
    stricter = ApprovalRules(broadcasts=one.broadcasts or other.broadcasts, erasures=one.erasures or other.erasures)
    bounds = [rules.above_devices for rules in (one, other) if rules.HasField("above_devices")]
    if bounds:
        stricter.above_devices = min(bounds)
    in_force = [rules for rules in (one, other) if rules.broadcasts] or [other]
    least = min(in_force, key=share_percent)
    if least.HasField("share_percent"):
        stricter.share_percent = least.share_percent
    return stricter


def loosens(before: ApprovalRules, after: ApprovalRules) -> bool:
    """Return whether something would need no second person any more after this change of the rules."""
    if before.erasures and not after.erasures:
        return True
    if before.broadcasts and (not after.broadcasts or share_percent(after) > share_percent(before)):
        return True
    is_bounded, is_still_bounded = before.HasField("above_devices"), after.HasField("above_devices")
    return is_bounded and (not is_still_bounded or after.above_devices > before.above_devices)


def draft_digest(draft: Draft) -> bytes:
    """Return the SHA-256 of the content of a draft: its team, request, task, and number of devices."""
    content = Draft(
        team_id=draft.team_id,
        body_json=draft.body_json,
        task=draft.task,
        is_broadcast=draft.is_broadcast,
        estimated_devices=draft.estimated_devices,
    )
    return hashlib.sha256(content.SerializeToString(deterministic=True)).digest()
