"""The ASGI applications of the three HTTP interfaces."""

from random import SystemRandom

from edge.android.app import android_app
from edge.core.answers import JsonApi
from edge.core.message_ids import MessageIds
from edge.core.parsing.body import Application, BodyBudget, BodyTimeout
from edge.core.replay_protection import ReplayProtection
from edge.core.request_limiter import RequestLimiter
from edge.ios.app import ios_app
from edge.settings import ROLE_NAME, EdgeSettings
from edge.v2.app import v2_app
from services.domain.registrations import RegistrationRates
from services.domain.role import RoleContext
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
        limiter = RequestLimiter(limiter_clock or SteadyClock(), context.peers, self.hangs)
        budget = BodyBudget(settings.edge_unverified_mib * 1024 * 1024)
        replays = ReplayProtection(ROLE_NAME, context.log, context.clock)
        android = android_app(settings, settings.timed_min_lead_s, context, ids, limiter, budget, replays)
        self.android = _application(android, limiter)
        rates = RegistrationRates(settings, context.clock, Replicas(context.board, ROLE_NAME).processes, SystemRandom())
        self.ios = _application(ios_app(settings, context, ids, limiter, budget, rates, replays), limiter)
        v2 = v2_app(settings, settings.v2_max_period_s, context, ids, limiter, budget, rates, replays)
        self.v2 = _application(v2, limiter)

    def by_port(self, settings: EdgeSettings) -> dict[int, Application]:
        return dict(zip(settings.interface_ports, (self.android, self.ios, self.v2), strict=True))


def _application(api: JsonApi, limiter: RequestLimiter) -> Application:
    return BodyTimeout(limiter.application(api))
