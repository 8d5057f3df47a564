"""Web Push as delivery runs it: all services of browsers, or the simulator in this process in their place."""

import ssl

from services.delivery.channels import ServedChannel
from services.delivery.channels.webpush.sender import PushServices
from services.delivery.channels.webpush.service import WebPushService
from services.delivery.settings import INTERNET, DeliverySettings
from services.domain.endpoint_connections import EndpointConnector, ReplacedConnector, SystemResolver
from services.domain.role import RoleContext
from services.process.logs import logger
from services.webpush_simulator.server import WebPushSimulator


def web_push(settings: DeliverySettings, context: RoleContext) -> ServedChannel:
    """Return the channel of these settings."""
    clock = context.clock
    simulator = None if settings.webpush == INTERNET else WebPushSimulator(clock, takes_all=True)

    def open_services() -> PushServices:
        if simulator is None:
            resolver = SystemResolver()
            return PushServices(EndpointConnector(resolver, ssl.create_default_context()), clock, resolver.close)
        logger.info("a simulator answers Web Push requests in the services' place: set CARILLON_WEBPUSH=internet")
        return PushServices(ReplacedConnector(lambda: simulator.address), clock)

    return ServedChannel(WebPushService(open_services, context.keys, clock), simulator)
