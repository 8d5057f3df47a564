"""Ends connections: those that have exceeded a deadline, and of devices whose keys were revoked or must be renewed."""

import asyncio
from collections import deque
from random import Random

from services.domain.apps import AppDirectory
from services.domain.key_chain import KeyChain
from services.domain.master_key import KeyPurpose
from services.gateway.acceptor import Certificate
from services.gateway.connection import DeviceConnection
from services.gateway.connections import ConnectionTable, OpenConnections
from services.gateway.rules import Limits, drained_retry_ms, end_reason
from services.runtime.process.clock import Clock

_SWEEP_MS = 1000
_CHUNK = 256
_REVOKED_CHUNK = 1000


class Sweeper:
    """Checks the deadlines of all open connections, and the certificate's files, once a second."""

    def __init__(
        self,
        open_connections: OpenConnections[DeviceConnection],
        clock: Clock,
        limits: Limits,
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
        """End them in chunks, between which other tasks run; the handshake checks devices that connect meanwhile."""
        for index, session in enumerate(self._connections.of_app(appkey)):
            if index % _REVOKED_CHUNK == _REVOKED_CHUNK - 1:
                await asyncio.sleep(0)
            if self._apps.is_revoked(appkey, session.partition, session.number):
                connection = self._connections.find(session.connection)
                if connection is not None:
                    is_lost = self._apps.is_lost(appkey, session.partition, session.number)
                    connection.goodbye("draining" if is_lost else "unauthorized")


class KeyRenewal:
    """Service: each time another key of device keys is in force, has the connected devices come again.

    The welcome then gives each a device key by the new key. Without this a device that stays connected for long would
    keep its former one until that is refused. `per_s` devices a second are told.
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
