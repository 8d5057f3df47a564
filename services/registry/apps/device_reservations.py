"""The quota of devices, reserved before a device is registered, so that registrations never exceed it.

The registration itself is decided without the quota, so deciding the same commands again always gives the same devices.
"""

from protos.registry.v1.apps_pb2 import App
from services.registry.queries import RegistryQueries
from services.runtime.process.clock import Clock

RESERVED_MS = 15_000
"""Time after which a reservation without a registration, which takes 5 s at most, ends."""


class DeviceReservations:
    """Reserves shares of the quota for new devices, in memory.

    An instance admits its share: quota x own partitions / partitions.
    """

    def __init__(self, queries: RegistryQueries, clock: Clock, own_partitions: int, partitions: int) -> None:
        self._queries = queries
        self._clock = clock
        self._own_partitions = own_partitions
        self._partitions = partitions
        self._expiries_ms: dict[str, dict[str, int]] = {}

    async def reserve(self, app: App, token: str) -> bool:
        """Return whether the token is registered, or has a reservation from now on; False when the quota is used up."""
        if not app.quotas.devices:
            return True
        most = -(-app.quotas.devices * self._own_partitions // self._partitions)
        reserved = self._unexpired(app.appkey)
        reserved.setdefault(token, self._clock.now_ms() + RESERVED_MS)
        count, known = await self._queries.registered(app.appkey, [token])
        if not known and count + len(reserved) > most:
            count, known = await self._queries.registered(app.appkey, list(reserved))
        for registered in known:
            reserved.pop(registered, None)
        if token in known or count + len(reserved) <= most:
            return True
        reserved.pop(token, None)
        return False

    def _unexpired(self, appkey: str) -> dict[str, int]:
        """Return the app's reservations, oldest first, after the expired ones are removed."""
        reserved = self._expiries_ms.setdefault(appkey, {})
        now_ms = self._clock.now_ms()
        while reserved and reserved[oldest := next(iter(reserved))] <= now_ms:
            del reserved[oldest]
        return reserved
