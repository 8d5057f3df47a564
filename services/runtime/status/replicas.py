"""How many processes run a role now, for limits of which each has an equal share."""

import asyncio

from services.runtime.status.status_board import StatusBoard


class Replicas:
    """Counts the present processes of a role and its instances, each at least one: the process that asks.

    Several processes are one instance where they share their counts, as the workers of an edge do. Present are those
    that were heard of within SILENT_MS of the latest announcement of any process: while the log is away and nobody is
    heard of, nobody leaves. Without a board there is one process.
    """

    def __init__(self, board: StatusBoard | None, role: str) -> None:
        self._board = board
        self._role = role
        self._counted_at: asyncio.Event | None = None
        self._processes = 1
        self._instances = 1

    def processes(self) -> int:
        self._count()
        return self._processes

    def instances(self) -> int:
        self._count()
        return self._instances

    def _count(self) -> None:
        if self._board is None or self._counted_at is self._board.change:
            return
        self._counted_at = self._board.change
        present = [
            each
            for each in self._board.processes()
            if not each.is_silent(self._board.heard_ms) and any(role.role == self._role for role in each.status.roles)
        ]
        self._processes = max(1, len(present))
        self._instances = max(1, len({each.status.instance or each.id for each in present}))
