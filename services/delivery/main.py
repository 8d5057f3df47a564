"""Delivery's settings and wiring."""

import os
from pathlib import Path

from protos.delivery.v1.delivery_pb2_grpc import add_DeliveryServiceServicer_to_server
from protos.delivery.v1.virtual_pb2_grpc import add_VirtualPhonesServiceServicer_to_server
from protos.runtime.v1.log_pb2_grpc import add_PositionsServiceServicer_to_server
from services.delivery.apns.senders import APPLE, CredentialsOf, Place, Senders
from services.delivery.audiences import Audiences
from services.delivery.commands import Commands
from services.delivery.expiry import Expiry
from services.delivery.fanout import Fanout
from services.delivery.ios.delivery import IosDelivery
from services.delivery.journal import Journal
from services.delivery.presence import Presence
from services.delivery.recorder import Recorder
from services.delivery.server import DeliveryServicer
from services.delivery.snapshots import DeliveryFold, Snapshots
from services.delivery.standin.certificate import new_key, public_key
from services.delivery.standin.phones import VirtualPhonesServicer
from services.delivery.standin.service import ApnsStandIn
from services.runtime.apns_credentials import ApnsCredentials, Environment, OpenedCredentials
from services.runtime.config import PREFIX, Settings, SettingsError
from services.runtime.log import Log
from services.runtime.parking import Parking
from services.runtime.progress import PositionsServicer
from services.runtime.role import Role, Surroundings
from services.runtime.rpc import Server
from services.runtime.topics import owned


class DeliverySettings(Settings, frozen=True, kw_only=True):
    """`apns_url`: where pushes for iOS devices go, `apns_sandbox_url` those for devices of developers; the first unset,
    to a stand-in in this process, and nothing leaves it. `apns_authority`: a PEM file of what vouches for both, when
    they are not Apple's."""

    apns_url: str | None = None
    apns_sandbox_url: str = APPLE[Environment.SANDBOX].url
    apns_authority: str | None = None

    def check(self) -> None:
        super().check()
        if self.apns_authority is not None and not os.access(self.apns_authority, os.R_OK):
            raise SettingsError(f"{PREFIX}APNS_AUTHORITY is {self.apns_authority!r}, which cannot be read")


SETTINGS = DeliverySettings


def open_state(settings: DeliverySettings, directory: Path, log: Log) -> DeliveryFold:
    """The state in a directory, for the role itself and for replays."""
    mine = owned(settings.partitions, settings.shard, settings.shards)
    return DeliveryFold(directory, log, _parking(settings), mine)


def build(settings: DeliverySettings, around: Surroundings) -> Role:
    """Wire the role: restore, record, send to iOS devices, follow commands, expire."""
    fold = open_state(settings, settings.state_dir("delivery"), around.log)
    state, clock = fold.state, around.clock
    journal = Journal(around.log, state, clock)
    recorder = Recorder(journal)
    presence = Presence()
    fanout = Fanout(state, presence, recorder, clock, settings.shards)
    standin = ApnsStandIn(clock)
    ios = IosDelivery(
        around.log,
        state,
        recorder,
        lambda: Senders(_places(settings, standin), clock),
        OpenedCredentials(around.keys) if settings.apns_url else _throw_away_key(standin),
        around.peers,
        around.apps,
        clock,
        settings.shards,
    )
    audiences = Audiences(around.peers, clock)
    commands = Commands(around.log, journal, state, audiences, fanout, ios, recorder, clock, _parking(settings))
    snapshots = Snapshots(fold, journal, around.log, clock, settings.snapshot_s)
    servicer = DeliveryServicer(state, fanout, recorder, clock, snapshots.restored)
    phones = VirtualPhonesServicer(None if settings.apns_url else standin)
    positions = PositionsServicer(commands.progress)
    return Role(
        "delivery",
        services=[
            *([] if settings.apns_url else [standin]),
            snapshots,
            recorder,
            ios,
            commands,
            Expiry(state, fanout, journal, clock),
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


def _parking(settings: DeliverySettings) -> Parking:
    return Parking(settings.data / "parked" / "delivery.jsonl", "delivery")


def _places(settings: DeliverySettings, standin: ApnsStandIn) -> dict[Environment, Place]:
    if settings.apns_url is None:
        return dict.fromkeys(APPLE, Place(standin.url, standin.authority))
    authority = Path(settings.apns_authority).read_text() if settings.apns_authority else None
    return {
        Environment.PRODUCTION: Place(settings.apns_url, authority),
        Environment.SANDBOX: Place(settings.apns_sandbox_url, authority),
    }


def _throw_away_key(standin: ApnsStandIn) -> CredentialsOf:
    """All apps are of one team, whose key the stand-in is told."""
    key = new_key()
    standin.keys.register("STANDIN", "STANDIN", public_key(key))
    return lambda app: ApnsCredentials("STANDIN", "STANDIN", app.package, key)
