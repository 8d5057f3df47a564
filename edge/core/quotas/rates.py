"""The quotas of requests and targets a second."""

from collections.abc import Iterable, Mapping

from edge.core.quotas.buckets import Rate, SharedBuckets
from edge.settings import ROLE_NAME
from services.domain.apps import AppDirectory
from services.domain.role import RoleContext
from services.runtime.errors import TooManyRequestsError
from services.runtime.process.metrics import QUOTA_REFUSALS
from services.runtime.process.settings import Settings
from services.runtime.status.replicas import Replicas

CODES_PER_S = 20
"""Pushes with possession codes that one app sends a second at most, whatever its quotas."""

_FIELDS = {Rate.REQUESTS: "requests_per_s", Rate.TARGETS: "targets_per_s"}
_NAMES = {Rate.REQUESTS: "requests", Rate.TARGETS: "targets"}


def rate_quotas(settings: Settings, context: RoleContext) -> "RateQuotas":
    """Return the quotas of this edge, whose processes share the files in its state's directory."""
    directory = settings.state_dir(ROLE_NAME) / "quotas"
    return RateQuotas(
        context.apps, SharedBuckets(directory, context.clock, Replicas(context.board, ROLE_NAME).instances)
    )


class RateQuotas:
    """Counts the requests and targets of apps that have a quota of them."""

    def __init__(self, apps: AppDirectory, buckets: SharedBuckets) -> None:
        self._apps = apps
        self._buckets = buckets

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
                raise TooManyRequestsError(
                    f"app {appkey} is over its quota of {per_s} {_NAMES[rate]} a second; try again in {wait_s} s",
                    wait_s,
                )
            taken.append((appkey, count, per_s))
