"""What a role's `build` is given and what it gives back, so that all roles are wired alike."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from services.runtime.apps import AppDirectory
from services.runtime.clock import Clock
from services.runtime.keys import Keyring
from services.runtime.log import Log
from services.runtime.peers import Peers
from services.runtime.rpc import Server
from services.runtime.runner import Service


@dataclass(frozen=True, slots=True)
class Surroundings:
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
