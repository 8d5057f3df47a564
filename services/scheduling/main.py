"""Wiring of the scheduling role, which stores timed tasks and sends them when they fall due."""

from pathlib import Path

from protos.runtime.v1.log_pb2_grpc import add_PositionsServiceServicer_to_server
from protos.scheduling.v1.scheduling_pb2_grpc import add_SchedulingServiceServicer_to_server
from services.domain.command_writer import CommandWriter
from services.domain.file_purges import FilePurger, forgotten_by
from services.domain.push_capacity import PushCapacity
from services.domain.role import BuiltRole, RoleContext, RoleDefinition, state_replay
from services.domain.token_resolver import TokenAndAliasResolver
from services.log.port import Log
from services.process.clock import SystemClock
from services.replica.positions import PositionsServicer
from services.replica.replay import State
from services.scheduling.app_sender import Approvals
from services.scheduling.projection import SchedulingProjection
from services.scheduling.server import SchedulingServicer
from services.scheduling.settings import ROLE_NAME, SchedulingSettings
from services.scheduling.task_sender import TaskSender
from services.scheduling.timer import DueTasks, Timer


def open_state(settings: SchedulingSettings, directory: Path, log: Log) -> State:
    """Open the state in a directory so that a replay can fold it forward."""
    return SchedulingProjection(settings, directory, log, SystemClock())


def build(settings: SchedulingSettings, context: RoleContext) -> BuiltRole:
    """Wire the role: follow the log, then send tasks that fall due."""
    membership, directory = context.membership, settings.state_dir(ROLE_NAME)
    projection = SchedulingProjection(settings, directory, context.log, context.clock, membership)
    purger = FilePurger(ROLE_NAME, [projection.store], forgotten_by(projection.follower), context.clock, settings)
    resolver = TokenAndAliasResolver(context.peers, settings.partitions)
    writer = CommandWriter(ROLE_NAME, context.log, context.peers, context.clock, settings.partitions)
    capacity = PushCapacity(context.peers, context.clock)
    approvals = Approvals(context.peers)
    sender = TaskSender(projection.follower, projection.tasks, resolver, capacity, approvals, writer, context.clock)
    due_tasks = DueTasks(projection.tasks, context.apps)
    timer = Timer(projection.follower, due_tasks, sender, context.apps, context.clock)
    servicer = SchedulingServicer(projection.follower, projection.committed, projection.lists)
    positions = PositionsServicer(
        projection.follower.applied, context.apps.applied, check=projection.follower.tenure.check
    )
    return BuiltRole(
        ROLE_NAME,
        services=[*([membership] if membership else []), projection, purger, sender, timer],
        servicers=[
            lambda server: add_SchedulingServiceServicer_to_server(servicer, server),
            lambda server: add_PositionsServiceServicer_to_server(positions, server),
        ],
        followers=[projection.follower.followed],
    )


ROLE = RoleDefinition(ROLE_NAME, SchedulingSettings, build, replay=state_replay(ROLE_NAME, open_state))
