"""FCM as delivery runs it: Google's service, or the simulator in this process in its place."""

from pathlib import Path

from services.delivery.channels import ServedChannel
from services.delivery.channels.fcm.sender import FcmEndpoint, FcmSenderPool
from services.delivery.channels.fcm.service import FcmCheck, FcmService
from services.delivery.settings import DeliverySettings
from services.domain.channel_credentials.fcm import open_account
from services.domain.channel_credentials.stored import CredentialsCache
from services.domain.role import RoleContext
from services.fcm_simulator.server import FcmSimulator, simulated_accounts


def fcm(settings: DeliverySettings, context: RoleContext) -> ServedChannel:
    """Return the channel of these settings."""
    clock = context.clock
    simulator = None if settings.fcm_url else FcmSimulator(clock)
    service = FcmService(
        lambda: FcmSenderPool(_endpoint(settings, simulator), clock),
        simulated_accounts(simulator) if simulator else CredentialsCache(open_account, context.keys),
        clock,
    )
    return ServedChannel(service, simulator, FcmCheck(service, simulated=simulator is not None))


def _endpoint(settings: DeliverySettings, simulator: FcmSimulator | None) -> FcmEndpoint:
    if simulator is not None:
        return FcmEndpoint(simulator.url, f"{simulator.url}/token", simulator.authority)
    assert settings.fcm_url is not None
    authority = Path(settings.fcm_authority).read_text() if settings.fcm_authority else None
    return FcmEndpoint(settings.fcm_url, settings.fcm_token_url, authority)
