"""Planted bugs of users, teams and drafts."""

from collections.abc import Sequence

from tests.simulation.planted.bug import PlantedBug, planted_bug

_APPEND = "await self._commands.append([task_command(decide.task_command(kept)) for kept in kept_drafts])"

ACCOUNTS_BUGS: Sequence[PlantedBug] = (
    planted_bug(
        "draft-noted-before-append",
        "an approved draft is noted as sent before the log has the command that sends it",
        "backends",
        ("services.accounts.drafts.sender:DraftSender._send_some", _APPEND, "pass"),
        ("services.accounts.drafts.sender:DraftSender._send_some", "DRAFTS_SENT.inc(len(facts))", _APPEND),
    ),
    planted_bug(
        "changed-while-approved",
        "an approval is taken although the draft was changed meanwhile",
        "backends",
        ("services.accounts.drafts.decide:decide_draft", "if request.approved.digest != draft.digest:", "if False:"),
    ),
)
"""Part of catalogue.BUGS."""
