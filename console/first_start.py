"""The first start: makes an administrator, and prints a one-time link with which a person chooses the password."""

import asyncio
import sys
from datetime import datetime

from console.settings import ROLE_NAME, ConsoleSettings
from protos.accounts.v1.service_pb2 import InviteFirstAdministratorRequest, InviteFirstAdministratorResponse
from protos.accounts.v1.service_pb2_grpc import LogInServiceStub
from protos.runtime.v1.log_pb2 import Origin
from services.errors import ConflictError, DeadlineError, UnavailableError
from services.process.logs import logger
from services.replica.peers import Peers

LOGIN = "admin"
_RETRY_S = 2.0


class FirstStart:
    """Service that prints a link at each start until an administrator, or anybody with a password, can log in.

    Where it prints none, the log says why.

    The process is ready without waiting for it. The role accounts decides whether anybody can log in, so that
    several consoles that start at once make one administrator.
    """

    name = "first start"

    def __init__(self, settings: ConsoleSettings, peers: Peers) -> None:
        self._settings = settings
        self._peers = peers

    async def run(self, ready: asyncio.Event) -> None:
        ready.set()
        if lines := await self.lines():
            sys.stdout.write("\n".join(lines) + "\n")
            sys.stdout.flush()
        await asyncio.Event().wait()

    async def lines(self) -> list[str]:
        """Return the lines with a new link, between empty ones; none if an administrator can log in.

        While accounts does not answer it is asked again.
        """
        log_ins = LogInServiceStub(self._peers.all("accounts")[0])
        request = InviteFirstAdministratorRequest(login=LOGIN, origin=Origin(interface=ROLE_NAME))
        while True:
            try:
                invited = await log_ins.InviteFirstAdministrator(request)
            except ConflictError as error:
                logger.info("no link for a first log-in is printed", reason=str(error))
                return []
            except (UnavailableError, DeadlineError) as error:
                logger.info(
                    "accounts does not answer yet; whether this is the first start is unknown", error=str(error)
                )
                await asyncio.sleep(_RETRY_S)
            else:
                return ["", *self._lines(invited), ""]

    def _lines(self, invited: InviteFirstAdministratorResponse) -> list[str]:
        until = datetime.fromtimestamp(invited.link_expires_ms / 1000, self._settings.zone())
        return [
            f"No administrator can log in to the console yet. Choose the password of {invited.user.login} here, once,"
            f" until {until:%Y-%m-%d %H:%M} (the next start prints another link):",
            f"   {self._settings.public_url}/link?token={invited.link_token}",
        ]
