"""Wiring of the webhooks role, which posts the events of apps to the receivers of their webhooks."""

import random
import ssl
from functools import partial

from protos.runtime.v1.log_pb2_grpc import add_PositionsServiceServicer_to_server
from protos.webhooks.v1.webhooks_pb2_grpc import add_WebhooksServiceServicer_to_server
from services.domain.endpoint_connections import EndpointConnector, SystemResolver
from services.domain.events import SOURCES
from services.domain.master_key import KeyPurpose
from services.domain.push_endpoints import webhook_hosts
from services.domain.role import BuiltRole, RoleContext, RoleDefinition
from services.log.identity import check_log_identity
from services.log.port import Partition
from services.replica.positions import PositionsServicer
from services.webhooks.receivers import Connector, Receiver
from services.webhooks.server import WebhooksServicer
from services.webhooks.service import WebhookService
from services.webhooks.settings import ROLE_NAME, WebhooksSettings
from services.webhooks.store import WebhookStore
from services.webhooks.tokens import DeviceTokens


def sources(installation: int) -> list[Partition]:
    """Return the partitions whose records make events; `installation`: its number of partitions."""
    return [Partition(topic.name, number) for topic in SOURCES for number in range(topic.partitions(installation))]


def build(settings: WebhooksSettings, context: RoleContext, connector: Connector | None = None) -> BuiltRole:
    """Wire the role."""
    directory = settings.state_dir(ROLE_NAME)
    check_log_identity(directory, context.log, ROLE_NAME)
    connector = connector or EndpointConnector(SystemResolver(), ssl.create_default_context())
    new_receiver = partial(Receiver, connector, webhook_hosts(settings.webhook_hosts))
    service = WebhookService(
        context.log,
        sources(settings.partitions),
        context.apps,
        WebhookStore(directory),
        new_receiver,
        DeviceTokens(context.peers),
        context.keys,
        context.clock,
        random.Random(),  # noqa: S311 - spreads attempts in time
    )
    servicer = WebhooksServicer(service, new_receiver, context.clock)
    positions = PositionsServicer(context.apps.applied)
    return BuiltRole(
        ROLE_NAME,
        services=[service],
        servicers=[
            lambda server: add_WebhooksServiceServicer_to_server(servicer, server),
            lambda server: add_PositionsServiceServicer_to_server(positions, server),
        ],
    )


ROLE = RoleDefinition(ROLE_NAME, WebhooksSettings, build, keys=frozenset({KeyPurpose.SECRETS}))
