"""Admission of a signed request: the networks and the signatures that its apps allow, and their quota of requests.

All are checked after the sign. Before it, the answer 403 or 429 would tell everyone which appkeys exist, and anyone
could use up another's quota.
"""

from collections import OrderedDict
from collections.abc import Sequence
from functools import lru_cache

from edge.core.quotas.rates import RateQuotas
from edge.core.replay_protection import SIGNATURE_HEADER
from protos.runtime.v1.log_pb2 import Origin
from services.domain.apps import AppDirectory
from services.runtime.errors import ForbiddenError
from services.runtime.http.client_address import Networks, read_address
from services.runtime.process.clock import Clock
from services.runtime.process.logs import logger
from services.runtime.process.metrics import OLD_SECRET_REQUESTS

LOG_AGAIN_MS = 3_600_000
MAX_LOGGED = 1000
"""Upper bound of the clients that are remembered as logged."""


class Admission:
    """Admits the signed requests of one interface."""

    def __init__(self, apps: AppDirectory, rates: RateQuotas, clock: Clock) -> None:
        self._apps = apps
        self._rates = rates
        self._clock = clock
        self._logged_ms: OrderedDict[tuple[str, str], int] = OrderedDict()

    def admit(
        self, appkeys: Sequence[str], origin: Origin, signed_by_old: Sequence[str], *, is_replay_safe: bool
    ) -> None:
        """Check that the request may be executed; `signed_by_old` are the appkeys that used their old secret.

        ForbiddenError: an app does not allow the address, or demands a replay-safe signature. TooManyRequestsError: an
        app is over its quota of requests.
        """
        for appkey in signed_by_old:
            OLD_SECRET_REQUESTS.labels(appkey).inc()
            self._log_old_secret(appkey, origin.address)
        for appkey in appkeys:
            app = self._apps.get(appkey)
            if app is not None and app.allow_from and not _is_in(origin.address, tuple(app.allow_from)):
                raise ForbiddenError(f"requests of app {appkey} are not accepted from {origin.address}")
            if app is not None and app.replay_safe_required and not is_replay_safe:
                raise ForbiddenError(
                    f"requests of app {appkey} need a replay-safe signature, the header {SIGNATURE_HEADER}"
                )
        self._rates.take_request(appkeys)

    def _log_old_secret(self, appkey: str, address: str) -> None:
        """Log once an hour which client still signs with the old secret."""
        now_ms = self._clock.now_ms()
        if now_ms < self._logged_ms.get((appkey, address), 0):
            return
        self._logged_ms[appkey, address] = now_ms + LOG_AGAIN_MS
        if len(self._logged_ms) > MAX_LOGGED:
            self._logged_ms.popitem(last=False)
        logger.warning("a client signs with the old secret, which ends soon", appkey=appkey, address=address)


def _is_in(address: str, networks: tuple[str, ...]) -> bool:
    return read_address(address) in _parsed(networks)


@lru_cache(maxsize=1024)
def _parsed(networks: tuple[str, ...]) -> Networks:
    return Networks.parse(networks)
