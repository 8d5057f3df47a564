"""Keeps the registry from removing devices whose keys were revoked, as if it was always killed before."""

from collections.abc import Sequence

import pytest

from services.registry.revocation_worker import RevocationWorker
from services.replica.store import Fact


def hold_removals(patch: pytest.MonkeyPatch) -> None:
    """Let revocations be stored and published, but remove no device, until the patch is undone."""
    patch.setattr(RevocationWorker, "_next_removals", _remove_none)


def _remove_none(worker: RevocationWorker) -> Sequence[Fact]:
    worker._is_idle = True
    return ()
