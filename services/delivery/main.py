"""Delivery's settings and wiring."""

from pathlib import Path

from protos.delivery.v1.delivery_pb2_grpc import add_DeliveryServiceServicer_to_server
from protos.runtime.v1.log_pb2_grpc import add_PositionsServiceServicer_to_server
from services.delivery.apns import ApnsSender
from services.delivery.audiences import Audiences
from services.delivery.commands import Commands
from services.delivery.expiry import Expiry
from services.delivery.fanout import Fanout
from services.delivery.ios import IosDelivery
from services.delivery.journal import Journal
from services.delivery.presence import Presence
from services.delivery.recorder import Recorder
from services.delivery.server import DeliveryServicer
from services.delivery.snapshots import DeliveryFold, Snapshots
from services.delivery.standin import ApnsStandIn
from services.runtime.config import Settings
from services.runtime.log import Log
from services.runtime.parking import Parking
from services.runtime.progress import PositionsServicer
from services.runtime.role import Role, Surroundings
from services.runtime.topics import owned


class DeliverySettings(Settings, frozen=True, kw_only=True):
    """`apns_url`: where pushes for iOS devices go; unset, to a stand-in in this process, and nothing leaves it."""

    apns_url: str | None = None


SETTINGS = DeliverySettings


def open_state(settings: DeliverySettings, directory: Path, log: Log) -> DeliveryFold:
    """The state in a directory, for the role itself and for replays."""
    mine = owned(settings.partitions, settings.shard, settings.shards)
    return DeliveryFold(directory, log, _parking(settings), mine)


def build(settings: DeliverySettings, around: Surroundings) -> Role:
    """Wire the role: restore, record, send to iOS devices, follow commands, expire."""
    fold = open_state(settings, settings.state_dir("delivery"), around.log)
    state, clock, url = fold.state, around.clock, settings.apns_url
    journal = Journal(around.log, state, clock)
    recorder = Recorder(journal)
    presence = Presence()
    fanout = Fanout(state, presence, recorder, clock, settings.shards)
    standin = ApnsStandIn(clock)
    ios = IosDelivery(
        around.log,
        state,
        recorder,
        (lambda: ApnsSender(url)) if url else (lambda: ApnsSender(standin.url, standin.authority)),
        around.peers,
        around.apps,
        clock,
        settings.shards,
    )
    audiences = Audiences(around.peers, clock)
    commands = Commands(around.log, journal, state, audiences, fanout, ios, recorder, clock, _parking(settings))
    snapshots = Snapshots(fold, journal, around.log, clock, settings.snapshot_s)
    servicer = DeliveryServicer(state, fanout, recorder, clock, snapshots.restored)
    positions = PositionsServicer(commands.progress)
    return Role(
        "delivery",
        services=[
            *([] if url else [standin]),
            snapshots,
            recorder,
            ios,
            commands,
            Expiry(state, fanout, journal, clock),
        ],
        servicers=[
            lambda server: add_DeliveryServiceServicer_to_server(servicer, server),
            lambda server: add_PositionsServiceServicer_to_server(positions, server),
        ],
    )


def _parking(settings: DeliverySettings) -> Parking:
    return Parking(settings.data / "parked" / "delivery.jsonl", "delivery")
