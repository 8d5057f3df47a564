"""Xiaomi as delivery runs it: Xiaomi's service, or the simulator in this process in its place."""

from services.delivery.channels import ServedChannel
from services.delivery.channels.batches.wiring import authority_text, known_to, served
from services.delivery.channels.xiaomi.service import XiaomiEndpoint, xiaomi_service
from services.delivery.settings import DeliverySettings
from services.domain.channel_credentials.stored import CredentialsCache
from services.domain.channel_credentials.xiaomi import XiaomiCredentials, open_xiaomi
from services.domain.role import RoleContext
from services.xiaomi_simulator.server import XiaomiApp, XiaomiSimulator


def xiaomi(settings: DeliverySettings, context: RoleContext) -> ServedChannel:
    """Return the channel of these settings."""
    clock = context.clock
    simulator = None if settings.xiaomi_url else XiaomiSimulator(clock)
    register = (lambda each: simulator.register(_app(each))) if simulator else None
    credentials_of = known_to(register, CredentialsCache(open_xiaomi, context.keys))
    service = xiaomi_service(lambda: _endpoint(settings, simulator), credentials_of, clock)
    return served(service, simulator, settings)


def _app(credentials: XiaomiCredentials) -> XiaomiApp:
    return XiaomiApp(credentials.package, credentials.app_secret)


def _endpoint(settings: DeliverySettings, simulator: XiaomiSimulator | None) -> XiaomiEndpoint:
    if simulator is not None:
        return XiaomiEndpoint(simulator.url, simulator.authority)
    assert settings.xiaomi_url is not None
    return XiaomiEndpoint(settings.xiaomi_url, authority_text(settings.xiaomi_authority))
