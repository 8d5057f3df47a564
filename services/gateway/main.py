"""Wires the gateway: the session writer, one uplink for each shard of delivery, and the listener for devices."""

from collections.abc import Callable, Sequence
from functools import partial
from random import Random, SystemRandom
from typing import NamedTuple

import msgspec

from services.domain.master_key import KeyPurpose
from services.domain.quota_notices import QuotaNotices
from services.domain.registrations import RegistrationLimiter, RegistrationRates
from services.domain.role import BuiltRole, RoleContext, RoleDefinition
from services.domain.settings import PREFIX
from services.gateway.acceptor import Acceptor, Certificate
from services.gateway.connection import DeviceConnection
from services.gateway.connections import ConnectionIds, ConnectionTable, OpenConnections
from services.gateway.device_requests import DeviceRequests
from services.gateway.handshake import Handshake
from services.gateway.left_devices import LeftDevices
from services.gateway.listener import DeviceListener, Drain
from services.gateway.push_sender import PushResumption, PushSender
from services.gateway.rules import Capacity, process_capacity
from services.gateway.session import SessionHandler
from services.gateway.session_writer import SessionWriter
from services.gateway.settings import ROLE_NAME, GatewaySettings
from services.gateway.sweeper import KeyRenewal, NumberSweeper, RevocationSweeper, Sweeper
from services.gateway.uplink import UnreportedQueue, Uplink
from services.net.sockets import raise_file_limit, shared_addresses
from services.process.metrics import CONNECTIONS_MAX, export_expiry
from services.process.runner import Service
from services.replica.instances import OwnerOfShard
from services.replica.status_board import Replicas

NewConnection = Callable[[Callable[[], None]], DeviceConnection]
"""Makes the connection of an accepted WebSocket; its argument is called at the welcome."""


class WiredGateway(NamedTuple):
    """A gateway without its listener. `services` run in this order, before devices connect."""

    services: Sequence[Service]
    new_connection: NewConnection
    connections: ConnectionTable[DeviceConnection]
    sweeper: Sweeper
    drain: Drain


def build(settings: GatewaySettings, context: RoleContext) -> BuiltRole:
    """Return the role; its last service is the listener, which stops first."""
    capacity = _capacity(settings)
    CONNECTIONS_MAX.set(capacity.connections)
    export_expiry(f"{PREFIX}GATEWAY_TLS_CERT", settings.gateway_tls_cert)
    certificate, limits = settings.certificate(), settings.limits()
    gateway = wire(settings, context, capacity, certificate, SystemRandom())
    shared = shared_addresses(settings.client_addresses())
    listener = DeviceListener(
        Acceptor(gateway.new_connection, gateway.connections, capacity, limits, certificate, shared),
        gateway.sweeper,
        gateway.drain,
        host=settings.host,
        port=settings.gateway_port,
        share_port=settings.gateway_share_port,
    )
    return BuiltRole(ROLE_NAME, services=[*gateway.services, listener], devices=gateway.connections.counts)


def wire(
    settings: GatewaySettings,
    context: RoleContext,
    capacity: Capacity,
    certificate: Certificate | None,
    random: Random,
) -> WiredGateway:
    """Wire all but the listener; `random` makes the gateway's name and spreads the devices' reconnects."""
    name = f"gateway-{random.getrandbits(32):08x}"
    connections: ConnectionTable[DeviceConnection] = ConnectionTable()
    writer = SessionWriter(context.log, context.peers, context.clock, name, settings.partitions, connections.counts)
    deliveries = context.peers.all("delivery")
    queues = [UnreportedQueue() for _ in deliveries]
    pushes = PushSender(connections, context.clock.now_ms, random, context.apps.is_paused)

    def uplink(shard: int) -> Uplink:
        return Uplink(
            deliveries[shard],
            OwnerOfShard(context.peers.directory, "delivery", shard),
            name,
            queues[shard],
            partial(pushes.begin_stream, shard, len(deliveries)),
            pushes.handle,
            random,
        )

    uplinks = map(uplink, range(len(deliveries)))
    revocations = RevocationSweeper(context.apps, connections)
    limits = settings.limits()
    renewal = KeyRenewal(context.apps, connections, context.clock, random, limits.drain_per_s)
    resumption = PushResumption(context.apps, pushes, deliveries, context.clock)
    now_ms = context.clock.now_ms
    connection_ids = ConnectionIds(random.getrandbits(16))
    open_connections: OpenConnections[DeviceConnection] = OpenConnections(connection_ids, now_ms)
    notices = QuotaNotices(context.peers, context.clock)
    rates = RegistrationRates(settings, context.clock, Replicas(context.board, ROLE_NAME).processes, random, notices)
    requests = DeviceRequests(context, settings.partitions, rates)
    registries = range(len(context.peers.all("registry")))
    left = LeftDevices(len(registries))
    drain = Drain(open_connections, context.clock, random, limits.drain_per_s)
    handshake = Handshake(
        context,
        connections,
        capacity,
        limits,
        RegistrationLimiter(settings.gateway_registrations_per_s),
        drain,
        requests,
        left,
        SessionHandler(connections, requests, writer, queues, left, now_ms),
        random,
    )
    owners = [OwnerOfShard(context.peers.directory, "registry", shard) for shard in registries]
    numbers = NumberSweeper(owners, connections, requests, left, context.clock, random, limits.drain_per_s)
    return WiredGateway(
        [writer, *uplinks, revocations, renewal, numbers, resumption],
        partial(DeviceConnection, handshake, open_connections, limits, now_ms, settings.client_addresses()),
        connections,
        Sweeper(open_connections, context.clock, limits, certificate),
        drain,
    )


def _capacity(settings: GatewaySettings) -> Capacity:
    """Return this process's capacity, after raising its limit of open files to the hard one."""
    capacity = process_capacity(raise_file_limit(), settings.gateway_max_connections, settings.http_max_connections)
    return msgspec.structs.replace(capacity, per_address=settings.gateway_connections_per_address)


ROLE = RoleDefinition(ROLE_NAME, GatewaySettings, build, keys=frozenset({KeyPurpose.DEVICES}))
