"""Wiring of the delivery role."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from protos.delivery.v1.delivery_pb2_grpc import (
    add_AliasesServiceServicer_to_server,
    add_AppleStateServiceServicer_to_server,
    add_CapacityServiceServicer_to_server,
    add_ChannelsServiceServicer_to_server,
    add_DeliveryServiceServicer_to_server,
    add_ReportsServiceServicer_to_server,
)
from protos.delivery.v1.virtual_pb2_grpc import add_VirtualPhonesServiceServicer_to_server
from protos.registry.v1.apps_pb2 import Channel
from protos.runtime.v1.log_pb2_grpc import add_PositionsServiceServicer_to_server
from services.apns_simulator.keys import new_key, public_key
from services.apns_simulator.server import ApnsSimulator, VirtualPhonesServicer
from services.delivery.alias_changes import AliasChanges
from services.delivery.channels import DeliveryChannel, ServedChannel
from services.delivery.channels.apns.sender import ApnsEndpoint, ApnsSenderPool, CredentialsSource
from services.delivery.channels.apns.service import ApnsService
from services.delivery.channels.fcm.wiring import fcm
from services.delivery.channels.harmony.wiring import harmony
from services.delivery.channels.health import Alarms
from services.delivery.channels.hms.wiring import hms
from services.delivery.channels.honor.wiring import honor
from services.delivery.channels.oppo.wiring import oppo
from services.delivery.channels.service_channel import ServiceChannel
from services.delivery.channels.sockets.fanout import Fanout
from services.delivery.channels.sockets.presence import Presence
from services.delivery.channels.sockets.reports import ReportIntake
from services.delivery.channels.vivo.wiring import vivo
from services.delivery.channels.webpush.wiring import web_push
from services.delivery.channels.xiaomi.wiring import xiaomi
from services.delivery.due_hand_overs import DueHandOvers
from services.delivery.erasures import ErasedNumbers, ErasureFollower
from services.delivery.event_writer import EventWriter
from services.delivery.expiry import ExpirySweeper
from services.delivery.follower import PushCommandFollower
from services.delivery.handing_over import HandOverService
from services.delivery.outcome_recorder import OutcomeRecorder
from services.delivery.server import (
    AliasesServicer,
    AppleStateServicer,
    CapacityServicer,
    ChannelsServicer,
    DeliveryServicer,
    ReportsServicer,
)
from services.delivery.service_senders import AddressRefresher, ServiceSenders
from services.delivery.settings import ROLE_NAME, DeliverySettings
from services.delivery.starting import PushStarter
from services.delivery.state.delivery_state import DeliveryState
from services.delivery.store import DeliveryStore, Snapshots
from services.delivery.tenure import DeliveryTenure, Standby
from services.delivery.waiting_pushes import WaitingBytes
from services.domain.apns_credentials import APPLE_URLS, ApnsCredentials, ApnsCredentialsCache, Environment
from services.domain.apps import AppDirectory
from services.domain.bitmap_resolver import AudienceBitmapResolver
from services.domain.command_writer import CommandWriter
from services.domain.master_key import KeyPurpose
from services.domain.role import BuiltRole, RoleContext, RoleDefinition, state_replay
from services.domain.token_resolver import TokenAndAliasResolver
from services.domain.topics import PUSH_COMMANDS
from services.log.port import Log, Partition
from services.log.topics import owned
from services.net.rpc.server import Server
from services.process.metrics import ERASURES_APPLIED
from services.process.runner import Service
from services.replica.dead_letters import DeadLetters
from services.replica.positions import AppliedPositions, PositionsServicer
from services.replica.tenure import OwnedServices


def open_state(settings: DeliverySettings, directory: Path, log: Log) -> DeliveryStore:
    """Open the state in a directory, for the role itself and for replays."""
    owned_partitions = owned(settings.partitions, settings.shard, settings.shards)
    return DeliveryStore(directory, log, _dead_letters(settings), owned_partitions)


def build(settings: DeliverySettings, context: RoleContext) -> BuiltRole:
    """Wire the role. Its services start in order: restore the state and stand by; then, as the owner of the partitions,
    record outcomes, send by every channel, start pushes, follow commands."""
    membership = context.membership
    store = open_state(settings, settings.state_dir(ROLE_NAME), context.log)
    log, clock, peers, state = context.log, context.clock, context.peers, store.state
    events = EventWriter(log, state, clock, store.reached, membership, store.last)
    applied = AppliedPositions([Partition(PUSH_COMMANDS.name, 0)])
    dead_letters = _dead_letters(settings)
    standby = Standby(store, events, log, dead_letters, applied)
    tenure = DeliveryTenure(store, events, standby, log, membership)
    simulator = None if settings.apns_url else ApnsSimulator(clock)
    served = served_channels(settings, context)
    simulators = [
        *([Channel.CHANNEL_APNS] if simulator else []),
        *(each.service.channel for each in served if each.simulator),
    ]
    recorder = OutcomeRecorder(events, simulators)
    ways = _open_channels(settings, context, state, recorder, simulator, served)
    fanout, apns = ways.fanout, ways.apns
    channels: dict[Channel.ValueType, DeliveryChannel] = {
        Channel.CHANNEL_SOCKETS: fanout,
        Channel.CHANNEL_APNS: apns,
    }
    waiting = WaitingBytes()
    snapshots = Snapshots(store, events, clock, settings.snapshot_s)
    erased = ErasedNumbers()
    starter = PushStarter(
        *(state, events, AudienceBitmapResolver(peers), channels, recorder, waiting, clock), erased.ends
    )
    erasures = ErasureFollower(*(log, store, tenure.tenure, recorder, fanout, starter, erased, snapshots, clock))
    ERASURES_APPLIED.labels(ROLE_NAME, "state").set_function(lambda: erasures.applied_until)
    pushes = PushCommandFollower(log, events, state, starter, waiting, clock, dead_letters, applied)
    reports = ReportIntake(state, fanout, recorder, lambda: tenure.restored_offset)
    resolver = TokenAndAliasResolver(peers, settings.partitions)
    changes = AliasChanges(state, starter, fanout, recorder, resolver, log, applied, clock)
    aliases = AliasesServicer(changes, tenure, starter.has_resumed)
    servicer = DeliveryServicer(state, fanout, reports, recorder, context.apps, clock, tenure, starter.has_resumed)
    stopped_of = {each.service.channel: channel.stopped for each, channel in zip(served, ways.taking_over, strict=True)}
    apple = AppleStateServicer(state.bad_tokens, apns.stopped, stopped_of, simulators, tenure)
    by_http = ReportsServicer(reports, recorder, tenure, starter.has_resumed)
    checks = {each.service.channel: each.check for each in served if each.check}
    checked = ChannelsServicer(checks, context.apps, tenure)
    phones = VirtualPhonesServicer(simulator, tenure.check)
    positions = PositionsServicer(applied, context.apps.applied, check=tenure.check)
    as_owner: Sequence[Service] = [
        *([simulator] if simulator else []),
        *(each.simulator for each in served if each.simulator),
        recorder,
        *channels.values(),
        *ways.taking_over,
        starter,
        pushes,
        *ways.refreshing,
        ways.hand_overs,
        ExpirySweeper(state, fanout, starter, events, clock),
    ]
    return BuiltRole(
        ROLE_NAME,
        services=[
            *([membership] if membership else []),
            snapshots,
            tenure,
            erasures,
            *([OwnedServices("delivery as owner", tenure.tenure, as_owner)] if membership else as_owner),
        ],
        servicers=[
            lambda server: _add_own(servicer, apple, phones, checked, server),
            lambda server: add_PositionsServiceServicer_to_server(positions, server),
            lambda server: add_AliasesServiceServicer_to_server(aliases, server),
            lambda server: add_ReportsServiceServicer_to_server(by_http, server),
            lambda server: add_CapacityServiceServicer_to_server(CapacityServicer(waiting, tenure), server),
        ],
        followers=[pushes.followed],
    )


class _OpenChannels(NamedTuple):
    """The channels of the role, and what hands messages over to those that reach devices without a connection.

    `refreshing`: what keeps the addresses of devices up to date; nothing without channels that take messages over.
    """

    fanout: Fanout
    apns: ServiceChannel[Any, Any, Any]
    taking_over: Sequence[ServiceChannel[Any, Any, Any]]
    hand_overs: HandOverService
    refreshing: Sequence[AddressRefresher]


def _open_channels(
    settings: DeliverySettings,
    context: RoleContext,
    state: DeliveryState,
    recorder: OutcomeRecorder,
    simulator: ApnsSimulator | None,
    served: Sequence[ServedChannel],
) -> _OpenChannels:
    clock, peers, apps = context.clock, context.peers, context.apps
    presence, alarms = Presence(), Alarms(clock)
    writer = CommandWriter(ROLE_NAME, context.log, peers, clock, settings.partitions)

    def channel_of(service: Any) -> ServiceChannel[Any, Any, Any]:
        return ServiceChannel(service, writer, state, recorder, peers, apps, alarms, clock, settings.shards)

    taking_over = [channel_of(each.service) for each in served]
    senders = open_senders(taking_over, apps)
    due = DueHandOvers(state, presence, recorder, apps.is_paused, senders, 1000 * settings.channel_grace_s)
    fanout = Fanout(state, presence, recorder, apps, clock, settings.shards, due)
    hand_overs = HandOverService(state, due, fanout, recorder, senders, clock)
    partitions = owned(settings.partitions, settings.shard, settings.shards)
    refresher = AddressRefresher(senders, due, hand_overs.channels_changed, peers, partitions, clock)
    apns = ApnsService(
        lambda: ApnsSenderPool(_endpoints(settings, simulator), clock),
        _simulator_credentials(simulator) if simulator else ApnsCredentialsCache(context.keys),
        context.keys,
        state,
        alarms,
        clock,
    )
    return _OpenChannels(fanout, channel_of(apns), taking_over, hand_overs, [refresher] if taking_over else [])


def served_channels(settings: DeliverySettings, context: RoleContext) -> Sequence[ServedChannel]:
    """Return the push services that take over messages for devices that are not connected."""
    return [serve(settings, context) for serve in (web_push, fcm, hms, harmony, honor, xiaomi, oppo, vivo)]


def open_senders(channels: Sequence[ServiceChannel[Any, Any, Any]], apps: AppDirectory) -> ServiceSenders:
    """Return the senders of the channels by which messages reach devices that are not connected."""
    return ServiceSenders(channels, apps)


def _add_own(
    servicer: DeliveryServicer,
    apple: AppleStateServicer,
    phones: VirtualPhonesServicer,
    channels: ChannelsServicer,
    server: Server,
) -> None:
    """Add the servicers that the commands' Unix socket serves too."""
    add_DeliveryServiceServicer_to_server(servicer, server)
    add_AppleStateServiceServicer_to_server(apple, server)
    add_VirtualPhonesServiceServicer_to_server(phones, server)
    add_ChannelsServiceServicer_to_server(channels, server)


def _dead_letters(settings: DeliverySettings) -> DeadLetters:
    return DeadLetters(settings.data / "dead-letters" / f"{ROLE_NAME}.jsonl", ROLE_NAME)


def _endpoints(settings: DeliverySettings, simulator: ApnsSimulator | None) -> dict[Environment, ApnsEndpoint]:
    if simulator is not None:
        return dict.fromkeys(APPLE_URLS, ApnsEndpoint(simulator.url, simulator.authority))
    assert settings.apns_url is not None
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
