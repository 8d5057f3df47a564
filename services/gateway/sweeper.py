"""Ends connections past a deadline, and those of devices with revoked or former keys, or with another's number."""

import asyncio
from collections import deque
from collections.abc import Sequence
from random import Random

from services.domain.apps import AppDirectory
from services.domain.master_key import KeyChain, KeyPurpose
from services.errors import CarillonError
from services.gateway.acceptor import Certificate
from services.gateway.connection import DeviceConnection
from services.gateway.connections import ConnectionTable, OpenConnections
from services.gateway.device_requests import DeviceRequests, ProvenDevice
from services.gateway.left_devices import LeftDevices
from services.gateway.rules import ConnectionLimits, drained_retry_ms, end_reason
from services.process.clock import Clock
from services.process.logs import logger
from services.replica.instances import OwnerOfShard

_SWEEP_MS = 1000
_CHUNK = 256
_REVOKED_CHUNK = 1000
_CONFIRMED_CHUNK = 1000
_RETRY_MS = 1000


class Sweeper:
    """Checks the deadlines of all open connections, and the certificate's files, once a second."""

    def __init__(
        self,
        open_connections: OpenConnections[DeviceConnection],
        clock: Clock,
        limits: ConnectionLimits,
        certificate: Certificate | None,
    ) -> None:
        self._open_connections = open_connections
        self._clock = clock
        self._limits = limits
        self._certificate = certificate

    async def run(self) -> None:
        while True:
            await self._clock.sleep_until(self._clock.now_ms() + _SWEEP_MS)
            if self._certificate is not None:
                self._certificate.reload_if_changed()
            for index, connection in enumerate(self._open_connections.all()):
                if index % _CHUNK == 0:
                    await asyncio.sleep(0)
                match end_reason(self._clock.now_ms(), connection, self._limits):
                    case "idle":
                        connection.goodbye("idle")
                    case "unacknowledged" as reason:
                        connection.goodbye("idle", reason, recorded_reason=reason)
                    case "slow" | "gone" as reason:
                        connection.abort(reason)


class RevocationSweeper:
    """Service: each time keys of an app are revoked, ends the connections of the devices with revoked keys.

    A device whose number was lost is registered anew when it says hello again.
    """

    name = "gateway-revocations"

    def __init__(self, apps: AppDirectory, connections: ConnectionTable[DeviceConnection]) -> None:
        self._apps = apps
        self._connections = connections
        self._appkeys: deque[str] = deque()
        self._changed = asyncio.Event()
        apps.on_revoked(self._note)

    async def run(self, ready: asyncio.Event) -> None:
        ready.set()
        while True:
            await self._changed.wait()
            self._changed.clear()
            while self._appkeys:
                await self._end_revoked(self._appkeys.popleft())

    def _note(self, appkey: str) -> None:
        if appkey not in self._appkeys:
            self._appkeys.append(appkey)
        self._changed.set()

    async def _end_revoked(self, appkey: str) -> None:
        """End connections in chunks; meanwhile other tasks run, and the handshake checks devices that connect."""
        for index, session in enumerate(self._connections.of_app(appkey)):
            if index % _REVOKED_CHUNK == _REVOKED_CHUNK - 1:
                await asyncio.sleep(0)
            if self._apps.is_revoked(appkey, session.partition, session.number):
                connection = self._connections.find(session.connection)
                if connection is not None:
                    is_lost = self._apps.is_lost(appkey, session.partition, session.number)
                    connection.goodbye("draining" if is_lost else "unauthorized")


class KeyRenewal:
    """Service: makes the connected devices reconnect each time another key for issuing device keys comes into force.

    The welcome then gives each device a device key that the new key has issued. Otherwise a device that stays connected
    for long would still have its former device key when the service stops accepting it. `per_s` goodbyes are sent a
    second.
    """

    name = "gateway-key-renewal"

    def __init__(
        self,
        apps: AppDirectory,
        connections: ConnectionTable[DeviceConnection],
        clock: Clock,
        random: Random,
        per_s: int,
    ) -> None:
        self._connections = connections
        self._clock = clock
        self._random = random
        self._per_s = per_s
        self._switched = asyncio.Event()
        apps.on_key_change(self._note)

    async def run(self, ready: asyncio.Event) -> None:
        ready.set()
        while True:
            await self._switched.wait()
            self._switched.clear()
            began_ms = self._clock.now_ms()
            for index, session in enumerate(list(self._connections.sessions(0, 1))):
                if index % _CHUNK == _CHUNK - 1:
                    await self._clock.sleep_until(began_ms + index * 1000 // self._per_s)
                    await asyncio.sleep(0)
                connection = self._connections.find(session.connection)
                if connection is not None:
                    connection.goodbye("draining", retry_after_ms=drained_retry_ms(_CHUNK, self._per_s, self._random))

    def _note(self, purpose: str, chain: KeyChain) -> None:
        if purpose == KeyPurpose.DEVICES.name and chain.former:
            self._switched.set()


class NumberSweeper:
    """Service: asks each new owner of a registry shard to confirm the numbers of connected devices.

    If the log has gone back while gateways ran, the registry starts again on what is left of the log. A device whose
    number the registry does not confirm is told to reconnect, and gets a valid number with its welcome.
    """

    name = "gateway-numbers"

    def __init__(
        self,
        owners: Sequence[OwnerOfShard],
        connections: ConnectionTable[DeviceConnection],
        requests: DeviceRequests,
        left: LeftDevices,
        clock: Clock,
        random: Random,
        per_s: int,
    ) -> None:
        """`owners`: those of the registry's shards. Devices that are told to reconnect do so `per_s` a second."""
        self._random = random
        self._per_s = per_s
        self._owners = owners
        self._connections = connections
        self._requests = requests
        self._left = left
        self._clock = clock

    async def run(self, ready: asyncio.Event) -> None:
        following = [asyncio.create_task(self._follow(owner)) for owner in self._owners]
        ready.set()
        try:
            await asyncio.gather(*following)
        finally:
            for task in following:
                task.cancel()

    async def _follow(self, owner: OwnerOfShard) -> None:
        known = owner.id
        while True:
            await owner.wait_other(known)
            known = owner.id
            self._left.forget(owner.shard)
            while not await self._confirm(owner.shard):
                await self._clock.sleep_until(self._clock.now_ms() + _RETRY_MS)
            self._left.note_confirmed(owner.shard)

    async def _confirm(self, shard: int) -> bool:
        """End the connections whose number is not their token's; False: the registry did not answer."""
        sessions = list(self._connections.sessions(shard, len(self._owners)))
        ended = 0
        for first in range(0, len(sessions), _CONFIRMED_CHUNK):
            some = sessions[first : first + _CONFIRMED_CHUNK]
            try:
                numbers = await self._requests.registered_numbers(
                    shard, [ProvenDevice(s.appkey, s.token) for s in some]
                )
            except CarillonError as error:
                logger.warning(
                    "the numbers of connected devices could not be confirmed; trying again", error=str(error)
                )
                return False
            for session, number in zip(some, numbers, strict=True):
                connection = self._connections.find(session.connection)
                if number != session.number and connection is not None:
                    retry_after_ms = drained_retry_ms(len(sessions), self._per_s, self._random)
                    connection.goodbye("draining", retry_after_ms=retry_after_ms)
                    ended += 1
        if ended:
            logger.error("connected devices have no number of their own: the event log has gone back", devices=ended)
        return True
