"""Honor as delivery runs it: Honor's service, or the simulator in this process in its place."""

from services.delivery.channels import ServedChannel
from services.delivery.channels.batches.wiring import authority_text, known_to, served
from services.delivery.channels.honor.service import HonorEndpoint, honor_service
from services.delivery.settings import DeliverySettings
from services.domain.channel_credentials.honor import HonorCredentials, open_honor
from services.domain.channel_credentials.stored import CredentialsCache
from services.domain.role import RoleContext
from services.honor_simulator.server import HonorApp, HonorSimulator


def honor(settings: DeliverySettings, context: RoleContext) -> ServedChannel:
    """Return the channel of these settings."""
    clock = context.clock
    simulator = None if settings.honor_url else HonorSimulator(clock)
    register = (lambda each: simulator.register(_app(each))) if simulator else None
    credentials_of = known_to(register, CredentialsCache(open_honor, context.keys))
    service = honor_service(lambda: _endpoint(settings, simulator), credentials_of, clock)
    return served(service, simulator, settings)


def _app(credentials: HonorCredentials) -> HonorApp:
    return HonorApp(credentials.app_id, credentials.client_id, credentials.client_secret)


def _endpoint(settings: DeliverySettings, simulator: HonorSimulator | None) -> HonorEndpoint:
    if simulator is not None:
        return HonorEndpoint(simulator.url, simulator.token_url, simulator.authority)
    assert settings.honor_url is not None
    return HonorEndpoint(settings.honor_url, settings.honor_token_url, authority_text(settings.honor_authority))
