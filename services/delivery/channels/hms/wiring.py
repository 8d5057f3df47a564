"""HMS as delivery runs it: Huawei's service, or the simulator in this process in its place."""

from services.delivery.channels import ServedChannel
from services.delivery.channels.batches.wiring import authority_text, served
from services.delivery.channels.hms.service import HmsEndpoint, hms_service
from services.delivery.settings import DeliverySettings
from services.domain.channel_credentials.hms import open_hms
from services.domain.channel_credentials.stored import CredentialsCache
from services.domain.role import RoleContext
from services.hms_simulator.server import HmsSimulator, simulated_clients


def hms(settings: DeliverySettings, context: RoleContext) -> ServedChannel:
    """Return the channel of these settings."""
    clock = context.clock
    simulator = None if settings.hms_url else HmsSimulator(clock)
    credentials_of = CredentialsCache(open_hms, context.keys)
    service = hms_service(
        lambda: _endpoint(settings, simulator),
        simulated_clients(simulator, credentials_of) if simulator else credentials_of,
        clock,
    )
    return served(service, simulator, settings)


def _endpoint(settings: DeliverySettings, simulator: HmsSimulator | None) -> HmsEndpoint:
    if simulator is not None:
        return HmsEndpoint(simulator.url, simulator.token_url, simulator.authority)
    assert settings.hms_url is not None
    return HmsEndpoint(settings.hms_url, settings.hms_token_url, authority_text(settings.hms_authority))
