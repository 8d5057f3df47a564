"""Wiring of the targeting role, which resolves audiences to devices with bitmap indexes."""

from pathlib import Path

from protos.runtime.v1.log_pb2_grpc import add_PositionsServiceServicer_to_server
from protos.targeting.v1.targeting_pb2_grpc import add_TargetingServiceServicer_to_server
from services.domain import ids
from services.domain.role import BuiltRole, RoleContext, RoleDefinition, state_replay
from services.log.port import Log
from services.process.clock import SystemClock
from services.process.metrics import ERASURES_APPLIED
from services.replica.positions import PositionsServicer
from services.replica.replay import State
from services.targeting.projection import TargetingProjection
from services.targeting.server import TargetingServicer
from services.targeting.settings import ROLE_NAME, TargetingSettings


def open_state(settings: TargetingSettings, directory: Path, log: Log) -> State:
    """Open the state in a directory so that a replay can fold it forward."""
    projection = TargetingProjection(settings, directory, log, SystemClock())
    projection.restore()
    return projection


def build(settings: TargetingSettings, context: RoleContext) -> BuiltRole:
    """Wire the role: follow the log and answer queries from memory."""
    membership, directory = context.membership, settings.state_dir(ROLE_NAME)
    projection = TargetingProjection(settings, directory, context.log, context.clock, membership)
    servicer = TargetingServicer(projection, context.apps, ids.event_id())
    ERASURES_APPLIED.labels(ROLE_NAME, "state").set_function(lambda: projection.applied_until)
    positions = PositionsServicer(projection.follower.applied, check=projection.check)
    return BuiltRole(
        ROLE_NAME,
        services=[*([membership] if membership else []), projection],
        servicers=[
            lambda server: add_TargetingServiceServicer_to_server(servicer, server),
            lambda server: add_PositionsServiceServicer_to_server(positions, server),
        ],
        followers=[projection.follower.followed],
    )


ROLE = RoleDefinition(
    ROLE_NAME, TargetingSettings, build, replay=state_replay(ROLE_NAME, open_state, reads_device_records=True)
)
