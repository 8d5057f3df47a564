"""Wiring of targeting: its settings, its service, and its state for replays."""

from collections.abc import Sequence
from pathlib import Path

from protos.runtime.v1.log_pb2_grpc import add_PositionsServiceServicer_to_server
from protos.targeting.v1.targeting_pb2_grpc import add_TargetingServiceServicer_to_server
from services.domain.role import Role, RoleContext
from services.runtime.log.port import Log
from services.runtime.log.topics import owned
from services.runtime.process.clock import Clock, SystemClock
from services.runtime.process.settings import Settings
from services.runtime.projection.dead_letters import DeadLetters
from services.runtime.projection.follower import Follower
from services.runtime.projection.positions import PositionsServicer
from services.targeting.projection import Targeting
from services.targeting.server import TargetingServicer
from services.targeting.state import TargetingState
from services.targeting.store import Snapshots

ROLE = "targeting"


class TargetingSettings(Settings, frozen=True, kw_only=True):
    """Targeting is told nothing that other roles are not told."""


SETTINGS = TargetingSettings


def build(settings: TargetingSettings, context: RoleContext) -> Role:
    state = _state(settings, context.clock)
    follower = _follower(settings, context.log, state)
    snapshots = Snapshots(settings.state_dir(ROLE), state)
    targeting = Targeting(state, follower, snapshots, context.clock, settings.snapshot_s)
    servicer, positions = TargetingServicer(targeting), PositionsServicer(follower.progress)
    return Role(
        ROLE,
        [targeting],
        [
            lambda server: add_TargetingServiceServicer_to_server(servicer, server),
            lambda server: add_PositionsServiceServicer_to_server(positions, server),
        ],
    )


class Replayed:
    """Targeting's state, opened to be folded forward."""

    def __init__(self, state: TargetingState, follower: Follower, snapshots: Snapshots) -> None:
        self.followers: Sequence[Follower] = [follower]
        self.digest = state.digest
        self.close = snapshots.save


def open_state(settings: TargetingSettings, directory: Path, log: Log) -> Replayed:
    """The state as the directory's snapshots know it; see replay.State."""
    state = _state(settings, SystemClock())
    snapshots = Snapshots(directory, state)
    snapshots.restore()
    return Replayed(state, _follower(settings, log, state), snapshots)


def _state(settings: TargetingSettings, clock: Clock) -> TargetingState:
    return TargetingState(owned(settings.partitions, settings.shard, settings.shards), settings.zone(), clock)


def _follower(settings: TargetingSettings, log: Log, state: TargetingState) -> Follower:
    dead_letters = DeadLetters(settings.data / "parked" / f"{ROLE}.jsonl", ROLE)
    return Follower(ROLE, log, state, state, dead_letters, folds=state.folds())
