"""The contract of a role: what `build` receives and returns, and the definition that each role's main.py offers."""

import functools
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic, TypeVar

from services.domain.apps import AppDirectory
from services.domain.master_key import KeyPurpose, Keys
from services.domain.sealing_switch import PersonKeys
from services.domain.settings import Settings
from services.log.archive.log import ArchivedLog
from services.log.port import Log
from services.net.http.server import Asgi
from services.net.rpc.server import Server
from services.process.clock import Clock
from services.process.runner import Service
from services.replica import replay
from services.replica.health import Followed
from services.replica.membership import Membership
from services.replica.own_status import ReportedRole
from services.replica.peers import Peers
from services.replica.replay import KeepBesideState, ReplayComparison, ReplaySource, State, keep_nothing
from services.replica.status_board import StatusBoard

S = TypeVar("S", bound=Settings)


@dataclass(frozen=True, slots=True)
class RoleContext:
    """Dependencies that a process shares among its roles. `apps` is caught up with the log before any role starts.

    `archived`: the log with its archive, where it has one; the service that moves records to the archive needs both.
    `membership`: the Membership of this process, for a role with standbys; the role runs it.
    `persons`: the keys of persons, which role_context gives each process.
    `board`: the statuses of all processes, for a role that reads them from the log or from its parent process.
    """

    log: Log
    clock: Clock
    peers: Peers
    keys: Keys
    apps: AppDirectory
    membership: Membership | None = None
    archived: ArchivedLog | None = None
    board: StatusBoard | None = None
    persons: PersonKeys | None = None


@dataclass(frozen=True, slots=True)
class BuiltRole:
    """A wired role: its services in starting order, and its servicers, each of which adds itself to a gRPC server.

    The process is ready only while the `followers` move. `pages` is an ASGI application that is served on the port of
    the process's operations, on all paths but theirs. `devices` returns the number of connected devices of each app.
    """

    name: str
    services: Sequence[Service]
    servicers: Sequence[Callable[[Server], None]] = field(default=())
    followers: Sequence[Followed] = field(default=())
    pages: Asgi | None = None
    devices: Callable[[], Mapping[str, int]] | None = None

    def reported(self, settings: Settings) -> ReportedRole:
        """Return what the process announces of the role."""
        followers = [followed.name for followed in self.followers]
        return ReportedRole(self.name, settings.shard, settings.shards, followers, self.devices)


@dataclass(frozen=True, slots=True)
class ReplaySupport(Generic[S]):
    """Functions that rebuild a role's state from the log up to given ends. They decide nothing and send nothing.

    `rebuild` replaces the live state and returns the digest; the role must not be running.
    `verify` compares the live state with one rebuilt beside it.
    `fill` builds a state in another directory and returns the digest.
    `is_one_directory`: the whole state is in its directory, so a copy of the directory is a state too.
    `reads_device_records`: the state is folded from topic `devices`, which is compacted. A state of an earlier moment
    therefore needs records that are decided again from `device-commands`.
    `reads_app_changes`: of topic `apps` the role reads only the changes, which are never compacted away. A state of an
    earlier moment reads `apps` up to that moment; for the other roles the apps are those of today.
    """

    rebuild: Callable[[S, ReplaySource], Awaitable[str]]
    verify: Callable[[S, ReplaySource], Awaitable[ReplayComparison]]
    fill: Callable[[S, Path, ReplaySource], Awaitable[str]]
    is_one_directory: bool = False
    reads_device_records: bool = False
    reads_app_changes: bool = False


@dataclass(frozen=True, slots=True)
class RoleDefinition(Generic[S]):
    """Everything that the `carillon` command knows of a role; `ROLE` in the role's main.py is one.

    `keys`: the purposes of the keys that the role needs; a process of its own is given no others.
    `replay`: None for a role without a state of its own.
    `serve`: runs the role on `carillon serve` in place of the usual single process, for a role that needs several.
    `decide_device_commands`: decides every command of topic `device-commands` in a log once more and appends the
    resulting device records to it; offered by the role that owns topic `devices`. The directory is for scratch files.
    """

    name: str
    settings: type[S]
    build: Callable[[S, RoleContext], BuiltRole]
    keys: frozenset[KeyPurpose] = frozenset()
    replay: ReplaySupport[S] | None = None
    serve: Callable[[Mapping[str, str]], None] | None = None
    decide_device_commands: Callable[[Settings, Path, Log], Awaitable[None]] | None = None


def state_replay(
    role: str,
    open_state: Callable[[S, Path, Log], State],
    *,
    reads_device_records: bool = False,
    keep: KeepBesideState = keep_nothing,
) -> ReplaySupport[S]:
    """Return the replay support of a role whose state is one directory that `open_state` opens."""

    async def rebuild(settings: S, source: ReplaySource) -> str:
        return await replay.rebuild(functools.partial(open_state, settings), settings.state_dir(role), source, keep)

    async def verify(settings: S, source: ReplaySource) -> ReplayComparison:
        return await replay.verify(functools.partial(open_state, settings), settings.state_dir(role), source)

    async def fill(settings: S, directory: Path, source: ReplaySource) -> str:
        return await replay.rebuild(functools.partial(open_state, settings), directory, source)

    return ReplaySupport(rebuild, verify, fill, is_one_directory=True, reads_device_records=reads_device_records)
