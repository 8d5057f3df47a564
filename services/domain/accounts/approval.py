"""Approval by a second person: which pushes need one, and the digest of what is approved."""

import hashlib

from protos.accounts.v1.accounts_pb2 import ApprovalRules
from protos.accounts.v1.drafts_pb2 import Draft


def needs_approval(rules: ApprovalRules, *, is_broadcast: bool, devices: int) -> bool:
    """Return whether a push to about `devices` devices needs the approval of a second person."""
    if is_broadcast and rules.broadcasts:
        return True
    return rules.HasField("above_devices") and devices > rules.above_devices


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
