"""Routes of the legacy Android interface."""

from edge.android.handlers import AckEndpoint, PushEndpoint, SendTimes, TimedEndpoint
from edge.core.acks import Acks
from edge.core.admission import Admission
from edge.core.answers import JsonApi, json_api
from edge.core.authentication import AppAuthenticator, Authenticator
from edge.core.body_budget import BodyBudget
from edge.core.broadcast_cancel import BroadcastCancel
from edge.core.idempotency import Idempotency
from edge.core.message_ids import MessageIds
from edge.core.origins import Origins
from edge.core.push import Pushes
from edge.core.quotas.pushes import PushQuotas
from edge.core.quotas.rates import rate_quotas
from edge.core.replay_protection import ReplayProtection
from edge.core.request_limiter import RequestLimiter
from edge.core.signature import SignatureVerifier
from edge.core.tasks import Tasks
from edge.openapi.documents import OPENAPI_PATH, DocumentEndpoint
from edge.settings import ROLE_NAME
from protos.registry.v1.apps_pb2 import PLATFORM_ANDROID
from services.domain.audiences.token_resolver import TokenAndAliasResolver
from services.domain.command_writer import CommandWriter
from services.domain.role import RoleContext
from services.runtime.process.settings import Settings


def android_app(
    settings: Settings,
    min_lead_s: int,
    context: RoleContext,
    ids: MessageIds,
    limiter: RequestLimiter,
    budget: BodyBudget,
    replays: ReplayProtection,
) -> JsonApi:
    """Return the ASGI application. `min_lead_s`: minimum lead of a timed message, seconds."""
    writer = CommandWriter(ROLE_NAME, context.log, context.peers, context.clock, settings.partitions)
    resolver = TokenAndAliasResolver(context.peers, settings.partitions)
    rates = rate_quotas(settings, context)
    quotas = PushQuotas(context.apps, rates, context.peers, context.clock)
    pushes = Pushes(context.apps, quotas, writer, resolver, ids, context.clock)
    idempotency = Idempotency(pushes, context.peers, context.clock, settings.partitions, limiter)
    broadcasts = BroadcastCancel(writer, context.peers)
    tasks = Tasks(writer, context.peers, settings.partitions)
    origins = Origins("android", settings.client_addresses())
    signatures = SignatureVerifier(context.apps, context.keys, context.clock)
    admission = Admission(context.apps, rates, context.clock)
    authenticator = AppAuthenticator(
        PLATFORM_ANDROID, context.apps, Authenticator(signatures, admission, origins, limiter, budget, replays)
    )
    app = json_api("android")
    app.add_route("/push", PushEndpoint(authenticator, idempotency, broadcasts))
    times = SendTimes(context.clock, settings.zone(), min_lead_s)
    app.add_route("/timed_msg", TimedEndpoint(authenticator, idempotency, tasks, times))
    app.add_route("/getAckInfo", AckEndpoint(authenticator, Acks(context.apps, context.peers)))
    app.add_route(OPENAPI_PATH, DocumentEndpoint("android"))
    return app
