"""vivo as delivery runs it: vivo's service, or the simulator in this process in its place."""

from services.delivery.channels import ServedChannel
from services.delivery.channels.batches.wiring import authority_text, known_to, served
from services.delivery.channels.vivo.service import VivoEndpoint, vivo_service
from services.delivery.settings import DeliverySettings
from services.domain.channel_credentials.stored import CredentialsCache
from services.domain.channel_credentials.vivo import VivoCredentials, open_vivo
from services.domain.role import RoleContext
from services.vivo_simulator.server import VivoApp, VivoSimulator


def vivo(settings: DeliverySettings, context: RoleContext) -> ServedChannel:
    """Return the channel of these settings."""
    clock = context.clock
    simulator = None if settings.vivo_url else VivoSimulator(clock)
    register = (lambda each: simulator.register(_app(each))) if simulator else None
    credentials_of = known_to(register, CredentialsCache(open_vivo, context.keys))
    service = vivo_service(lambda: _endpoint(settings, simulator), credentials_of, clock)
    return served(service, simulator, settings)


def _app(credentials: VivoCredentials) -> VivoApp:
    return VivoApp(credentials.app_id, credentials.app_key, credentials.app_secret)


def _endpoint(settings: DeliverySettings, simulator: VivoSimulator | None) -> VivoEndpoint:
    if simulator is not None:
        return VivoEndpoint(simulator.url, simulator.authority)
    assert settings.vivo_url is not None
    return VivoEndpoint(settings.vivo_url, authority_text(settings.vivo_authority))
