"""The console's access to the service, shared by pages and calls."""

from dataclasses import dataclass
from zoneinfo import ZoneInfo

from edge.console.role_stubs import RoleStubs
from edge.console.send.audience import Audiences
from edge.console.send.composed_pushes import ComposedPushes
from edge.core.broadcast_cancel import BroadcastCancel
from edge.core.tasks import Tasks
from services.domain.accounts.directory import AccountDirectory
from services.domain.apps import AppDirectory
from services.runtime.process.clock import Clock


@dataclass(frozen=True, kw_only=True)
class Backend:
    """The roles' stubs, the directories of apps and accounts, and the objects that send and cancel pushes.

    `zone`: the time zone of the public interfaces.
    """

    roles: RoleStubs
    apps: AppDirectory
    accounts: AccountDirectory
    clock: Clock
    zone: ZoneInfo
    composed_pushes: ComposedPushes
    audiences: Audiences
    tasks: Tasks
    broadcasts: BroadcastCancel
