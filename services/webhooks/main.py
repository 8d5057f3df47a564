"""Wiring of the webhooks role, which posts the events of apps and teams to the receivers of their webhooks."""

import random
import ssl
from functools import partial
from pathlib import Path

from protos.runtime.v1.log_pb2_grpc import add_PositionsServiceServicer_to_server
from protos.webhooks.v1.webhooks_pb2_grpc import add_WebhooksServiceServicer_to_server
from services.domain.accounts import AccountDirectory
from services.domain.applied_erasures import export_applied_erasures
from services.domain.endpoint_connections import Connector, EndpointConnector, SystemResolver
from services.domain.events import SOURCES
from services.domain.master_key import KeyPurpose
from services.domain.push_endpoints import webhook_hosts
from services.domain.role import BuiltRole, RoleContext, RoleDefinition
from services.domain.topics import ERASURES_PARTITION
from services.log.port import Partition
from services.process.runner import Service
from services.replica.partition_reader import PartitionReader
from services.replica.positions import PositionsServicer
from services.webhooks.event_streams import EventStreams, StreamLabels
from services.webhooks.log_readers import LogReaders
from services.webhooks.push_ends import PushEnds, snapshot_file
from services.webhooks.push_labels import PushLabels, labels_file
from services.webhooks.receivers import Receiver
from services.webhooks.server import WebhooksServicer
from services.webhooks.service import WebhookService
from services.webhooks.settings import ROLE_NAME, WebhooksSettings
from services.webhooks.store import open_store
from services.webhooks.subscriptions import Subscriptions
from services.webhooks.tokens import DeviceTokens


def sources(installation: int) -> list[Partition]:
    """Return the partitions whose records make events; `installation`: its number of partitions."""
    return [Partition(topic.name, number) for topic in SOURCES for number in range(topic.partitions(installation))]


def build(settings: WebhooksSettings, context: RoleContext, connector: Connector | None = None) -> BuiltRole:
    """Wire the role."""
    directory = settings.state_dir(ROLE_NAME)
    connector = connector or EndpointConnector(SystemResolver(), ssl.create_default_context())
    new_receiver = partial(Receiver, connector, webhook_hosts(settings.webhook_hosts))
    partitions, tokens = sources(settings.partitions), DeviceTokens(context.peers)
    accounts = AccountDirectory(context.log)
    subscriptions = Subscriptions(context.apps, accounts)
    labels = PushLabels(context.log, subscriptions, context.clock, labels_file(directory))
    readers = LogReaders(context.log, partitions, context.apps.get)
    service = WebhookService(
        context.log,
        partitions,
        subscriptions,
        readers,
        labels,
        open_store(directory, context.log),
        new_receiver,
        tokens,
        context.keys,
        context.clock,
        random.Random(),  # noqa: S311 - spreads attempts in time
    )
    ends = PushEnds(context.log, settings.partitions, subscriptions, context.clock, snapshot_file(directory))
    stream_labels = StreamLabels(context.clock)
    of_streams = PushLabels(context.log, stream_labels, context.clock, snapshot=None)
    streams = EventStreams(context.log, partitions, readers, tokens, subscriptions, stream_labels, of_streams)
    forgetting = PartitionReader("webhooks erasures", context.log, ERASURES_PARTITION, tokens.forget)
    export_applied_erasures(ROLE_NAME, "tokens", forgetting.applied)
    notices = _notices(settings, context, accounts, directory)
    servicer = WebhooksServicer(service, streams, new_receiver, context.clock)
    positions = PositionsServicer(context.apps.applied, accounts.applied)
    return BuiltRole(
        ROLE_NAME,
        services=[accounts, forgetting, ends, labels, of_streams, service, *notices],
        servicers=[
            lambda server: add_WebhooksServiceServicer_to_server(servicer, server),
            lambda server: add_PositionsServiceServicer_to_server(positions, server),
        ],
    )


def _notices(
    settings: WebhooksSettings, context: RoleContext, accounts: AccountDirectory, directory: Path
) -> list[Service]:
    """Return the service that mails people about drafts, if there is a mail server. Called after `open_store`."""
    server = settings.mail_server()
    if server is None:
        return []
    # Imported here: only installations with a mail server pay for its client in memory and in the time of their start.
    from services.webhooks.notices.mails import Surroundings
    from services.webhooks.notices.service import NoticeService
    from services.webhooks.notices.smtp import SmtpTransport
    from services.webhooks.notices.store import NoticeStore

    def app_name(appkey: str) -> str:
        app = context.apps.get(appkey)
        return app.name if app else appkey

    around = Surroundings(accounts, app_name, settings.public_url, settings.zone())
    transport = SmtpTransport(server, settings.mail_sender, ssl.create_default_context())
    jitter = random.Random()  # noqa: S311 - spreads attempts in time
    sender, store = settings.smtp_from or "", NoticeStore(directory)
    return [NoticeService(context.log, store, around, transport, sender, context.clock, jitter)]


ROLE = RoleDefinition(ROLE_NAME, WebhooksSettings, build, keys=frozenset({KeyPurpose.SECRETS}))
