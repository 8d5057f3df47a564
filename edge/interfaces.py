"""The ASGI applications of the three HTTP interfaces."""

from random import SystemRandom

from edge.android.app import android_app
from edge.core.admission import Admission, PushAdmission, SharedLimits
from edge.core.answers import JsonApi
from edge.core.idempotency import IdempotentPushes, PushClaims
from edge.core.message_ids import MessageIds
from edge.core.parsing.body import Application, BodyBudget, BodyTimeout
from edge.core.push import Pushes
from edge.core.quotas import rate_quotas
from edge.core.refusals import RefusalRecorder
from edge.core.replay_protection import ReplayProtection
from edge.core.request_limiter import RequestLimiter
from edge.ios.app import ios_app
from edge.settings import ROLE_NAME, EdgeSettings
from edge.v2.app import v2_app
from edge.v2.device_frames import PossessionCodes
from services.domain.command_writer import CommandWriter
from services.domain.quota_notices import QuotaNotices
from services.domain.registrations import RegistrationRates
from services.domain.role import RoleContext
from services.domain.token_resolver import TokenAndAliasResolver
from services.process.clock import Clock, HangWatch, SteadyClock
from services.replica.status_board import Replicas


class Interfaces:
    """The applications of the three interfaces, which share limits, message ids and the watch for hangs."""

    def __init__(
        self,
        settings: EdgeSettings,
        context: RoleContext,
        limiter_clock: Clock | None = None,
        hangs: HangWatch | None = None,
    ) -> None:
        """`limiter_clock` measures how long work takes, and `hangs` notices hangs; both by default in real time."""
        self.message_ids = ids = MessageIds(ROLE_NAME, context.log, context.clock)
        self.hangs = hangs or HangWatch()
        clock, peers, partitions = context.clock, context.peers, settings.partitions
        limiter = RequestLimiter(limiter_clock or SteadyClock(), peers)
        limits = SharedLimits(
            rate_quotas(settings, context),
            limiter,
            BodyBudget(settings.edge_unverified_mib * 1024 * 1024),
            ReplayProtection(ROLE_NAME, context.log, clock),
            RefusalRecorder(ROLE_NAME, context.apps, context.log, clock),
        )
        android, ios, v2 = (
            Admission(interface, context, settings.client_addresses(), limits) for interface in ("android", "ios", "v2")
        )
        push_admission = PushAdmission(context.apps, limits.rates, peers, clock)
        writer = CommandWriter(ROLE_NAME, context.log, peers, clock, partitions)
        resolver = TokenAndAliasResolver(peers, partitions)
        sender = Pushes(push_admission, writer, resolver, ids, clock, self.hangs)
        pushes = IdempotentPushes(sender, PushClaims(sender, peers, clock, partitions))
        possession = PossessionCodes(context, writer, ids, push_admission, partitions)
        processes = Replicas(context.board, ROLE_NAME).processes
        rates = RegistrationRates(settings, clock, processes, SystemRandom(), QuotaNotices(peers, clock))
        self.android = _application(
            android_app(settings, settings.timed_min_lead_s, context, android, pushes, writer), limiter
        )
        self.ios = _application(ios_app(settings, context, ios, pushes, writer, resolver, rates), limiter)
        period_s = settings.v2_max_period_s
        self.v2 = _application(
            v2_app(settings, period_s, context, v2, pushes, writer, resolver, possession, rates), limiter
        )

    def by_port(self, settings: EdgeSettings) -> dict[int, Application]:
        return dict(zip(settings.interface_ports, (self.android, self.ios, self.v2), strict=True))


def _application(api: JsonApi, limiter: RequestLimiter) -> Application:
    return BodyTimeout(limiter.application(api))
