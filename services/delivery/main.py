"""Wiring of the delivery role."""

from pathlib import Path

from protos.delivery.v1.delivery_pb2_grpc import add_DeliveryServiceServicer_to_server
from protos.delivery.v1.virtual_pb2_grpc import add_VirtualPhonesServiceServicer_to_server
from protos.runtime.v1.log_pb2_grpc import add_PositionsServiceServicer_to_server
from services.apns_simulator.certificate import new_key, public_key
from services.apns_simulator.server import ApnsSimulator
from services.apns_simulator.watching import VirtualPhonesServicer
from services.delivery.android.fanout import Fanout
from services.delivery.android.presence import Presence
from services.delivery.apns.senders import APPLE, CredentialsOf, Place, Senders
from services.delivery.audiences import Audiences
from services.delivery.event_writer import EventWriter
from services.delivery.expiry import Expiry
from services.delivery.ios.delivery import IosDelivery
from services.delivery.outcome_recorder import OutcomeRecorder
from services.delivery.projection import Commands
from services.delivery.server import DeliveryServicer
from services.delivery.settings import ROLE_NAME, DeliverySettings
from services.delivery.state.snapshots import DeliveryFold, Snapshots
from services.domain.apns.credentials import ApnsCredentials, Environment, OpenedCredentials
from services.domain.role import BuiltRole, RoleContext, RoleDefinition, state_replay
from services.runtime.log.port import Log
from services.runtime.log.topics import owned
from services.runtime.projection.dead_letters import DeadLetters
from services.runtime.projection.positions import PositionsServicer
from services.runtime.rpc.transport import Server


def open_state(settings: DeliverySettings, directory: Path, log: Log) -> DeliveryFold:
    """The state in a directory, for the role itself and for replays."""
    mine = owned(settings.partitions, settings.shard, settings.shards)
    return DeliveryFold(directory, log, _dead_letters(settings), mine)


def build(settings: DeliverySettings, context: RoleContext) -> BuiltRole:
    """Wire the role: restore, record, send to iOS devices, follow commands, expire."""
    fold = open_state(settings, settings.state_dir(ROLE_NAME), context.log)
    state, clock = fold.state, context.clock
    events = EventWriter(context.log, state, clock)
    recorder = OutcomeRecorder(events)
    presence = Presence()
    fanout = Fanout(state, presence, recorder, clock, settings.shards)
    simulator = ApnsSimulator(clock)
    ios = IosDelivery(
        context.log,
        state,
        recorder,
        lambda: Senders(_places(settings, simulator), clock),
        OpenedCredentials(context.keys) if settings.apns_url else _throw_away_key(simulator),
        context.peers,
        context.apps,
        clock,
        settings.shards,
    )
    audiences = Audiences(context.peers, clock)
    commands = Commands(context.log, events, state, audiences, fanout, ios, recorder, clock, _dead_letters(settings))
    snapshots = Snapshots(fold, events, context.log, clock, settings.snapshot_s)
    servicer = DeliveryServicer(state, fanout, recorder, clock, snapshots.restored)
    phones = VirtualPhonesServicer(None if settings.apns_url else simulator)
    positions = PositionsServicer(commands.progress)
    return BuiltRole(
        ROLE_NAME,
        services=[
            *([] if settings.apns_url else [simulator]),
            snapshots,
            recorder,
            ios,
            commands,
            Expiry(state, fanout, events, clock),
        ],
        servicers=[
            lambda server: _add_own(servicer, phones, server),
            lambda server: add_PositionsServiceServicer_to_server(positions, server),
        ],
    )


def _add_own(servicer: DeliveryServicer, phones: VirtualPhonesServicer, server: Server) -> None:
    """What the commands' socket serves too."""
    add_DeliveryServiceServicer_to_server(servicer, server)
    add_VirtualPhonesServiceServicer_to_server(phones, server)


def _dead_letters(settings: DeliverySettings) -> DeadLetters:
    return DeadLetters(settings.data / "parked" / f"{ROLE_NAME}.jsonl", ROLE_NAME)


def _places(settings: DeliverySettings, simulator: ApnsSimulator) -> dict[Environment, Place]:
    if settings.apns_url is None:
        return dict.fromkeys(APPLE, Place(simulator.url, simulator.authority))
    authority = Path(settings.apns_authority).read_text() if settings.apns_authority else None
    return {
        Environment.PRODUCTION: Place(settings.apns_url, authority),
        Environment.SANDBOX: Place(settings.apns_sandbox_url, authority),
    }


def _throw_away_key(simulator: ApnsSimulator) -> CredentialsOf:
    """All apps are of one team, whose key the stand-in is told."""
    key = new_key()
    simulator.keys.register("STANDIN", "STANDIN", public_key(key))
    return lambda app: ApnsCredentials("STANDIN", "STANDIN", app.package, key)


ROLE = RoleDefinition(ROLE_NAME, DeliverySettings, build, replay=state_replay(ROLE_NAME, open_state))
