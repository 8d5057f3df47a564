"""Wiring of the delivery role."""

from pathlib import Path

from protos.delivery.v1.delivery_pb2_grpc import (
    add_CapacityServiceServicer_to_server,
    add_DeliveryServiceServicer_to_server,
)
from protos.delivery.v1.virtual_pb2_grpc import add_VirtualPhonesServiceServicer_to_server
from protos.runtime.v1.log_pb2_grpc import add_PositionsServiceServicer_to_server
from services.apns_simulator.certificate import new_key, public_key
from services.apns_simulator.server import ApnsSimulator
from services.apns_simulator.watch_servicer import VirtualPhonesServicer
from services.delivery.android.fanout import Fanout
from services.delivery.android.presence import Presence
from services.delivery.android.reports import ReportIntake
from services.delivery.android.resumption import Resumption
from services.delivery.apns.sender_pool import APPLE, ApnsEndpoint, CredentialsSource, SenderPool
from services.delivery.event_writer import EventWriter
from services.delivery.expiry import ExpirySweeper
from services.delivery.ios.delivery import IosDelivery
from services.delivery.outcome_recorder import OutcomeRecorder
from services.delivery.projection import PushProjection
from services.delivery.server import CapacityServicer, DeliveryServicer
from services.delivery.settings import ROLE_NAME, DeliverySettings
from services.delivery.starting.starter import PushStarter
from services.delivery.starting.waiting_bytes import WaitingBytes
from services.delivery.store import DeliveryStore, Snapshots
from services.domain.apns.credentials import ApnsCredentials, CredentialsCache, Environment
from services.domain.audiences.bitmaps import AudienceBitmapResolver
from services.domain.command_writer import CommandWriter
from services.domain.master_key import KeyPurpose
from services.domain.role import BuiltRole, RoleContext, RoleDefinition, state_replay
from services.runtime.log.port import Log
from services.runtime.log.topics import owned
from services.runtime.projection.dead_letters import DeadLetters
from services.runtime.projection.positions import PositionsServicer
from services.runtime.rpc.server import Server


def open_state(settings: DeliverySettings, directory: Path, log: Log) -> DeliveryStore:
    """Open the state in a directory, for the role itself and for replays."""
    owned_partitions = owned(settings.partitions, settings.shard, settings.shards)
    return DeliveryStore(directory, log, _dead_letters(settings), owned_partitions)


def build(settings: DeliverySettings, context: RoleContext) -> BuiltRole:
    """Wire the role. Its services start in order: restore the state, record outcomes, send to iOS,
    start pushes, follow commands."""
    store = open_state(settings, settings.state_dir(ROLE_NAME), context.log)
    log, clock, peers, state = context.log, context.clock, context.peers, store.state
    events = EventWriter(log, state, clock)
    recorder = OutcomeRecorder(events)
    fanout = Fanout(state, Presence(), recorder, context.apps, clock, settings.shards)
    simulator = ApnsSimulator(clock)
    ios = IosDelivery(
        CommandWriter(ROLE_NAME, log, peers, clock, settings.partitions),
        state,
        recorder,
        lambda: SenderPool(_endpoints(settings, simulator), clock),
        CredentialsCache(context.keys) if settings.apns_url else _simulator_credentials(simulator),
        peers,
        context.apps,
        clock,
        settings.shards,
    )
    waiting = WaitingBytes()
    starter = PushStarter(state, events, AudienceBitmapResolver(peers), fanout, ios, recorder, waiting, clock)
    pushes = PushProjection(log, events, state, starter, waiting, clock, _dead_letters(settings))
    snapshots = Snapshots(store, events, log, clock, settings.snapshot_s)
    reports = ReportIntake(state, fanout, recorder, lambda: snapshots.restored_offset)
    servicer = DeliveryServicer(state, fanout, reports, recorder, context.apps, clock, starter.has_resumed)
    phones = VirtualPhonesServicer(None if settings.apns_url else simulator)
    positions = PositionsServicer(pushes.applied, context.apps.applied)
    return BuiltRole(
        ROLE_NAME,
        services=[
            *([] if settings.apns_url else [simulator]),
            snapshots,
            recorder,
            ios,
            starter,
            pushes,
            Resumption(context.apps, fanout, clock),
            ExpirySweeper(state, fanout, starter, events, clock),
        ],
        servicers=[
            lambda server: _add_own(servicer, phones, server),
            lambda server: add_PositionsServiceServicer_to_server(positions, server),
            lambda server: add_CapacityServiceServicer_to_server(CapacityServicer(waiting), server),
        ],
        followers=[pushes.followed],
    )


def _add_own(servicer: DeliveryServicer, phones: VirtualPhonesServicer, server: Server) -> None:
    """Add the servicers that the commands' Unix socket serves too."""
    add_DeliveryServiceServicer_to_server(servicer, server)
    add_VirtualPhonesServiceServicer_to_server(phones, server)


def _dead_letters(settings: DeliverySettings) -> DeadLetters:
    return DeadLetters(settings.data / "dead-letters" / f"{ROLE_NAME}.jsonl", ROLE_NAME)


def _endpoints(settings: DeliverySettings, simulator: ApnsSimulator) -> dict[Environment, ApnsEndpoint]:
    if settings.apns_url is None:
        return dict.fromkeys(APPLE, ApnsEndpoint(simulator.url, simulator.authority))
    authority = Path(settings.apns_authority).read_text() if settings.apns_authority else None
    return {
        Environment.PRODUCTION: ApnsEndpoint(settings.apns_url, authority),
        Environment.SANDBOX: ApnsEndpoint(settings.apns_sandbox_url, authority),
    }


def _simulator_credentials(simulator: ApnsSimulator) -> CredentialsSource:
    """Return credentials with one new key for all apps, and register the key with the simulator."""
    key = new_key()
    simulator.keys.register("SIMULATOR", "SIMULATOR", public_key(key))
    return lambda app: ApnsCredentials("SIMULATOR", "SIMULATOR", app.package, key)


ROLE = RoleDefinition(
    ROLE_NAME,
    DeliverySettings,
    build,
    keys=frozenset({KeyPurpose.SECRETS}),
    replay=state_replay(ROLE_NAME, open_state),
)
