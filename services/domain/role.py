"""What a role's `build` is given and what it gives back, so that all roles are wired alike."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from services.domain.apps import AppDirectory
from services.domain.keys import Keyring
from services.runtime.log.port import Log
from services.runtime.process.clock import Clock
from services.runtime.process.runner import Service
from services.runtime.rpc.peers import Peers
from services.runtime.rpc.transport import Server


@dataclass(frozen=True, slots=True)
class RoleContext:
    """What a process offers to the roles in it. `apps` runs before them."""

    log: Log
    clock: Clock
    peers: Peers
    keys: Keyring
    apps: AppDirectory


@dataclass(frozen=True, slots=True)
class Role:
    """A wired role: services to run, in order, and servicers to add to the process's server."""

    name: str
    services: Sequence[Service]
    servicers: Sequence[Callable[[Server], None]] = field(default=())
