"""OPPO as delivery runs it: OPPO's service, or the simulator in this process in its place."""

from services.delivery.channels import ServedChannel
from services.delivery.channels.batches.wiring import authority_text, known_to, served
from services.delivery.channels.oppo.service import OppoEndpoint, oppo_service
from services.delivery.settings import DeliverySettings
from services.domain.channel_credentials.oppo import OppoCredentials, open_oppo
from services.domain.channel_credentials.stored import CredentialsCache
from services.domain.role import RoleContext
from services.oppo_simulator.server import OppoApp, OppoSimulator


def oppo(settings: DeliverySettings, context: RoleContext) -> ServedChannel:
    """Return the channel of these settings."""
    clock = context.clock
    simulator = None if settings.oppo_url else OppoSimulator(clock)
    register = (lambda each: simulator.register(_app(each))) if simulator else None
    credentials_of = known_to(register, CredentialsCache(open_oppo, context.keys))
    service = oppo_service(lambda: _endpoint(settings, simulator), credentials_of, clock)
    return served(service, simulator, settings)


def _app(credentials: OppoCredentials) -> OppoApp:
    return OppoApp(credentials.app_key, credentials.master_secret)


def _endpoint(settings: DeliverySettings, simulator: OppoSimulator | None) -> OppoEndpoint:
    if simulator is not None:
        return OppoEndpoint(simulator.url, simulator.authority)
    assert settings.oppo_url is not None
    return OppoEndpoint(settings.oppo_url, authority_text(settings.oppo_authority))
