"""Routes of the legacy iOS interface."""

from edge.core.admission import Admission
from edge.core.answers import JsonApi, json_api
from edge.core.authentication import AppAuthenticator, Authenticator
from edge.core.body_budget import BodyBudget
from edge.core.idempotency import Idempotency
from edge.core.message_ids import MessageIds
from edge.core.origins import Origins
from edge.core.push import Pushes
from edge.core.quotas.pushes import PushQuotas
from edge.core.quotas.rates import rate_quotas
from edge.core.replay_protection import ReplayProtection
from edge.core.request_limiter import RequestLimiter
from edge.core.signature import SignatureVerifier
from edge.ios.handlers import PushEndpoint, RegisterEndpoint
from edge.ios.registrations import Registrations
from edge.openapi.documents import OPENAPI_PATH, DocumentEndpoint
from edge.settings import ROLE_NAME
from protos.registry.v1.apps_pb2 import PLATFORM_IOS
from services.domain.alias_checks import AliasChecks
from services.domain.audiences.token_resolver import TokenAndAliasResolver
from services.domain.command_writer import CommandWriter
from services.domain.limits.device_quota import DeviceQuota
from services.domain.limits.registrations import RegistrationRates
from services.domain.role import RoleContext
from services.runtime.process.settings import Settings


def ios_app(
    settings: Settings,
    context: RoleContext,
    ids: MessageIds,
    limiter: RequestLimiter,
    budget: BodyBudget,
    rates_of_devices: RegistrationRates,
    replays: ReplayProtection,
) -> JsonApi:
    writer = CommandWriter(ROLE_NAME, context.log, context.peers, context.clock, settings.partitions)
    resolver = TokenAndAliasResolver(context.peers, settings.partitions)
    rates = rate_quotas(settings, context)
    quotas = PushQuotas(context.apps, rates, context.peers, context.clock)
    pushes = Pushes(context.apps, quotas, writer, resolver, ids, context.clock)
    origins = Origins("ios", settings.client_addresses())
    signatures = SignatureVerifier(context.apps, context.keys, context.clock)
    admission = Admission(context.apps, rates, context.clock)
    authenticator = AppAuthenticator(
        PLATFORM_IOS, context.apps, Authenticator(signatures, admission, origins, limiter, budget, replays)
    )
    app = json_api("ios")
    idempotency = Idempotency(pushes, context.peers, context.clock, settings.partitions, limiter)
    app.add_route("/push", PushEndpoint(authenticator, idempotency))
    devices = DeviceQuota(context.apps, context.peers, settings.partitions)
    registrations = Registrations(
        context.apps, writer, resolver, rates_of_devices, devices, AliasChecks(context.peers), settings.partitions
    )
    app.add_route("/register", RegisterEndpoint(authenticator, registrations))
    app.add_route(OPENAPI_PATH, DocumentEndpoint("ios"))
    return app
