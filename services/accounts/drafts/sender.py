"""Sends approved drafts: hands each to scheduling as a timed task, and then notes that it was sent."""

import asyncio

from protos.accounts.v1.drafts_pb2 import DraftFact
from protos.runtime.v1.log_pb2 import Origin
from services.accounts.drafts import decide
from services.accounts.fact_writer import FactWriter
from services.accounts.store import AccountTable
from services.domain.command_writer import CommandWriter, task_command
from services.errors import BusyError, UnavailableError
from services.process.logs import logger
from services.process.metrics import DRAFTS_SENT
from services.replica.follower import Follower

_AT_ONCE = 20
_RETRY_S = 1.0


class DraftSender:
    """Service that sends each approved draft, whatever becomes of the call that approved it, and after a restart too.

    The task's key is the draft's, and scheduling creates a task once, so repeating the command sends nothing twice.
    """

    name = "draft sender"

    def __init__(
        self, follower: Follower, committed: AccountTable, writer: FactWriter, commands: CommandWriter
    ) -> None:
        self._follower = follower
        self._committed = committed
        self._writer = writer
        self._commands = commands

    async def run(self, ready: asyncio.Event) -> None:
        ready.set()
        while True:
            change = self._follower.applied.change
            while await self._send_some():
                pass
            await change.wait()

    async def _send_some(self) -> bool:
        """Send some approved drafts; return whether there may be more."""
        kept_drafts = await self._follower.query(self._committed.approved, _AT_ONCE)
        if not kept_drafts:
            return False
        try:
            await self._commands.append([task_command(decide.task_command(kept)) for kept in kept_drafts])
        except (BusyError, UnavailableError) as error:
            logger.warning("approved drafts cannot be sent yet; trying again", error=str(error))
            await asyncio.sleep(_RETRY_S)
            return True
        facts: list[DraftFact] = [decide.sent(kept.draft.draft_id) for kept in kept_drafts]
        await self._writer.write(lambda accounts, now_ms: (None, facts), Origin())
        DRAFTS_SENT.inc(len(facts))
        return True
