"""An app's quotas of requests and targets a second, which all worker processes of an edge count together."""

import fcntl
import os
import struct
from collections.abc import Callable, Iterable, Mapping
from enum import IntEnum
from pathlib import Path

from edge.settings import ROLE_NAME
from services.domain.apps import AppDirectory
from services.domain.quota_notices import QuotaNotices
from services.domain.role import RoleContext
from services.domain.settings import Settings
from services.errors import Code, TooManyRequestsError
from services.process.clock import Clock
from services.process.logs import logger
from services.process.metrics import QUOTA_REFUSALS
from services.replica.status_board import Replicas

# Token buckets that the worker processes of one edge share through files, one file for each app.
#
# A bucket is the time at which it will be full again (the "theoretical arrival time" of the generic cell rate
# algorithm), so it needs no refilling and survives restarts. It holds the tokens of one second, at least one. A
# request for more tokens than that passes when the bucket is full, and later ones wait until its tokens have come in.

MAX_COUNT = 10_000
"""Upper bound of the tokens of one request."""

_LOCK_ATTEMPTS = 10_000
_SECOND_NS = 10**9
_TIME = struct.Struct("<q")


class Rate(IntEnum):
    """The rates that are limited; the value is the place in an app's file."""

    REQUESTS = 0
    TARGETS = 1
    POSSESSION_CODES = 2


class SharedBuckets:
    """The buckets of all apps. `instances`: how many edges share the load now; each has an equal share of a rate."""

    def __init__(self, directory: Path, clock: Clock, instances: Callable[[], int]) -> None:
        self._directory = directory
        self._clock = clock
        self._instances = instances

    def take(self, appkey: str, rate: Rate, count: int, per_s: int) -> int:
        """Take `count` tokens and return 0, or take none and return the seconds after which to try again.

        Where the file cannot be read or written the tokens count as taken: a full disk must not stop pushes.
        """
        try:
            return self._change(appkey, rate, min(count, MAX_COUNT), per_s)
        except OSError as error:
            logger.error("an app's quota cannot be checked", appkey=appkey, error=str(error))
            return 0

    def give_back(self, appkey: str, rate: Rate, count: int, per_s: int) -> None:
        """Return the tokens of a request that was refused for another reason."""
        self.take(appkey, rate, -count, per_s)

    def _change(self, appkey: str, rate: Rate, count: int, per_s: int) -> int:
        interval_ns = self._instances() * _SECOND_NS // per_s
        capacity_ns = max(_SECOND_NS, interval_ns)
        now_ns = self._clock.now_ms() * 1_000_000
        descriptor = self._open(appkey)
        try:
            _lock(descriptor)
            stored = os.pread(descriptor, _TIME.size, rate * _TIME.size)
            full_ns = _TIME.unpack(stored)[0] if len(stored) == _TIME.size else 0
            if full_ns > now_ns + capacity_ns + MAX_COUNT * interval_ns:
                full_ns = 0  # the clock was set back, or the quota was raised
            full_ns = max(full_ns, now_ns)
            wait_ns = full_ns + min(count * interval_ns, capacity_ns) - capacity_ns - now_ns
            if wait_ns > 0 and count > 0:
                return -(-wait_ns // _SECOND_NS)
            os.pwrite(descriptor, _TIME.pack(full_ns + count * interval_ns), rate * _TIME.size)
            return 0
        finally:
            os.close(descriptor)

    def _open(self, appkey: str) -> int:
        path = self._directory / appkey
        try:
            return os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        except FileNotFoundError:
            self._directory.mkdir(parents=True, exist_ok=True)
            return os.open(path, os.O_RDWR | os.O_CREAT, 0o600)


def _lock(descriptor: int) -> None:
    """Lock the file against the other workers, which hold it for microseconds.

    If one was stopped with the lock the request goes on without it: a count may then be lost, but no worker hangs.
    """
    for _ in range(_LOCK_ATTEMPTS):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.sched_yield()
        else:
            return


# The quotas of requests and targets a second.

CODES_PER_S = 20
"""Pushes with possession codes that one app sends a second at most, whatever its quotas."""

_FIELDS = {Rate.REQUESTS: "requests_per_s", Rate.TARGETS: "targets_per_s"}
_OVER = {Rate.REQUESTS: Code.OVER_REQUESTS, Rate.TARGETS: Code.OVER_TARGETS}


def rate_quotas(settings: Settings, context: RoleContext) -> "RateQuotas":
    """Return the quotas of this edge, whose processes share the files in its state's directory."""
    directory = settings.state_dir(ROLE_NAME) / "quotas"
    buckets = SharedBuckets(directory, context.clock, Replicas(context.board, ROLE_NAME).instances)
    return RateQuotas(context.apps, buckets, QuotaNotices(context.peers, context.clock))


class RateQuotas:
    """Counts the requests and targets of apps that have a quota of them."""

    def __init__(self, apps: AppDirectory, buckets: SharedBuckets, notices: QuotaNotices) -> None:
        self._apps = apps
        self._buckets = buckets
        self._notices = notices

    def take_request(self, appkeys: Iterable[str]) -> None:
        """Count a request for each app. TooManyRequestsError: an app is over its quota; no app's request counts."""
        self._take(Rate.REQUESTS, dict.fromkeys(appkeys, 1))

    def take_targets(self, counts: Mapping[str, int]) -> None:
        """Count the targets of each app. Errors as for `take_request`."""
        self._take(Rate.TARGETS, counts)

    def take_code(self, appkey: str) -> None:
        """Count a push that brings a possession code. TooManyRequestsError: the app has had too many of them."""
        if wait_s := self._buckets.take(appkey, Rate.POSSESSION_CODES, 1, CODES_PER_S):
            raise TooManyRequestsError("too many devices of this app ask for a code; repeat the request", wait_s)

    def _take(self, rate: Rate, counts: Mapping[str, int]) -> None:
        taken: list[tuple[str, int, int]] = []
        for appkey, count in counts.items():
            app = self._apps.get(appkey)
            per_s = int(getattr(app.quotas, _FIELDS[rate])) if app is not None and app.HasField("quotas") else 0
            if not per_s:
                continue
            if wait_s := self._buckets.take(appkey, rate, count, per_s):
                for other, others, others_per_s in taken:
                    self._buckets.give_back(other, rate, others, others_per_s)
                QUOTA_REFUSALS.labels(appkey, _FIELDS[rate]).inc()
                self._notices.note(appkey, _FIELDS[rate], per_s)
                raise TooManyRequestsError(_OVER[rate], wait_s, appkey=appkey, quota=per_s, wait_s=wait_s)
            taken.append((appkey, count, per_s))
