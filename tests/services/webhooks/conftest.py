"""The webhooks role on an embedded log, a registry that knows all tokens, and a receiver on this machine."""

import asyncio
import struct
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from protos.accounts.v1.accounts_pb2 import AccountFact, AppGiven, Team, TeamChanged
from protos.delivery.v1.delivery_pb2 import AppOutcomes, DeliveryFact, OutcomeKind, Outcomes
from protos.registry.v1.apps_pb2 import WEBHOOK_FORM_STANDARD, App, AppFact, TeamWebhooks, Webhook
from protos.registry.v1.registry_pb2 import GetTokensRequest, GetTokensResponse
from protos.registry.v1.registry_pb2_grpc import RegistryServiceServicer, add_RegistryServiceServicer_to_server
from protos.runtime.v1.log_pb2 import Meta
from protos.webhooks.v1.webhooks_pb2_grpc import WebhooksServiceStub
from services.domain import ids
from services.domain.accounts import AccountDirectory
from services.domain.apps import AppDirectory, team_webhooks_key
from services.domain.master_key import MasterKey
from services.domain.role import RoleContext
from services.domain.topics import ACCOUNTS, APPS, DELIVERIES, TOPICS
from services.domain.webhooks import new_secret, seal_secret, team_scope
from services.errors import UnavailableError
from services.log.port import NewRecord, Partition
from services.log.sqlite.log import SqliteLog
from services.net.rpc.local import LocalServer
from services.net.rpc.server import Context
from services.process.clock import ManualClock
from services.replica.peers import Peers
from services.webhooks.main import build
from services.webhooks.service import WebhookService
from services.webhooks.settings import WebhooksSettings
from testkit.services import started
from testkit.waiting import until_holds
from testkit.webhook_receiver import WebhookReceiver, webhook_receiver

NOW_MS = 1_800_000_000_000
APP, OTHER = "1000000001", "1000000002"
TEAM = "5e0f2c1d0f5f4c1e"
PARTITIONS = 2
RECEIVED = OutcomeKind.OUTCOME_KIND_RECEIVED


class Registry(RegistryServiceServicer):
    """Knows the token of every device but those with an odd hundred, and counts the calls."""

    def __init__(self) -> None:
        self.calls = 0
        self.is_away = False

    async def GetTokens(self, request: GetTokensRequest, context: Context) -> GetTokensResponse:
        self.calls += 1
        if self.is_away:
            raise UnavailableError("the registry is away")
        tokens = ["" if number // 100 % 2 else f"token-{request.partition}-{number}" for number in request.numbers]
        return GetTokensResponse(tokens=tokens)


class Installation:
    """A log with apps, and the webhooks role, which may be started anew."""

    def __init__(self, directory: Path, hosts: Sequence[str]) -> None:
        self.clock = ManualClock(NOW_MS)
        self.keys = MasterKey(bytes(32))
        self.registry = Registry()  # type: ignore[abstract]
        self.settings = WebhooksSettings(data_dir=str(directory), partitions=PARTITIONS, webhook_hosts=",".join(hosts))
        self.log = SqliteLog(directory / "events.db", TOPICS, partitions=PARTITIONS)
        self.apps = {appkey: App(appkey=appkey) for appkey in (APP, OTHER)}
        self.secrets: dict[str, str] = {}
        self.of_team = TeamWebhooks(team_id=TEAM)
        self.accounts: AccountDirectory | None = None
        self.given = 0
        self.outcomes = 0
        self._service: WebhookService | None = None

    @property
    def service(self) -> WebhookService:
        assert self._service is not None
        return self._service

    @asynccontextmanager
    async def running(self) -> AsyncIterator[WebhookService]:
        """Run the role."""
        directory = AppDirectory(self.log)
        server = LocalServer()
        add_RegistryServiceServicer_to_server(self.registry, server)  # type: ignore[arg-type]
        peers = Peers({"registry": [server.channel()]}, TOPICS)
        context = RoleContext(self.log, self.clock, peers, self.keys, directory)
        tasks = [await started(directory)]
        try:
            role = build(self.settings, context)
            own = LocalServer()
            for add in role.servicers:
                add(own)  # type: ignore[arg-type]
            self.stub = WebhooksServiceStub(own.channel())
            tasks += [await started(each) for each in role.services]
            (self._service,) = (each for each in role.services if isinstance(each, WebhookService))
            (self.accounts,) = (each for each in role.services if isinstance(each, AccountDirectory))
            yield self._service
        finally:
            self.accounts = None
            for task in reversed(tasks):
                task.cancel()
                await asyncio.wait([task])

    async def write_app(self, appkey: str) -> None:
        fact = AppFact(meta=self.meta(), app=self.apps[appkey])
        await self.log.append([NewRecord(APPS.name, 0, appkey.encode(), fact.SerializeToString())])

    async def subscribe(self, url: str, appkey: str = APP, **fields: Any) -> Webhook:
        """Give the app a webhook."""
        webhook = self._new_webhook(url, appkey, fields)
        self.apps[appkey].webhooks.append(webhook)
        await self.write_app(appkey)
        return webhook

    async def subscribe_team(self, url: str, **fields: Any) -> Webhook:
        """Give the team TEAM a webhook."""
        webhook = self._new_webhook(url, team_scope(TEAM), fields)
        self.of_team.webhooks.append(webhook)
        fact = AppFact(meta=self.meta(), team_webhooks=self.of_team)
        await self.log.append([NewRecord(APPS.name, 0, team_webhooks_key(TEAM), fact.SerializeToString())])
        return webhook

    def _new_webhook(self, url: str, scope: str, given: dict[str, Any]) -> Webhook:
        webhook_id = f"{len(self.secrets):016x}"
        secret = self.secrets[webhook_id] = new_secret()
        fields = {"form": WEBHOOK_FORM_STANDARD, "created_ms": self.clock.now_ms()} | given
        sealed = seal_secret(secret, scope, webhook_id, self.keys)
        return Webhook(webhook_id=webhook_id, url=url, sealed_secret=sealed, **fields)

    async def name_team(self, name: str) -> None:
        """Write the record of the team TEAM."""
        team = TeamChanged(team=Team(team_id=TEAM, name=name, version=1))
        await self._write_account(f"team/{TEAM}", AccountFact(meta=self.meta(), team=team))

    async def give_app(self, appkey: str, team_id: str) -> None:
        """Give the app to a team; return once the role knows it."""
        self.given += 1
        given = AppGiven(appkey=appkey, team_id=team_id, version=self.given)
        await self._write_account(f"app/{appkey}", AccountFact(meta=self.meta(), app=given))

    async def _write_account(self, key: str, fact: AccountFact) -> None:
        offsets = await self.log.append([NewRecord(ACCOUNTS.name, 0, key.encode(), fact.SerializeToString())])
        if self.accounts is not None:
            await self.accounts.applied.wait([(Partition(ACCOUNTS.name, 0), offsets[0])])

    async def until_followed(self, webhook: Webhook) -> None:
        """Return once the role has begun with the webhook, or goes on by it as it is now."""

        def is_followed() -> bool:
            sender = self.service.senders.get(webhook.webhook_id)
            return sender is not None and sender.queue.webhook == webhook

        await until_holds(is_followed)

    async def change(self, webhook: Webhook, **fields: Any) -> Webhook:
        """Change the webhook in its app's record."""
        (own,) = [each for app in self.apps.values() for each in app.webhooks if each.webhook_id == webhook.webhook_id]
        for name, value in fields.items():
            setattr(own, name, value)
        await self.write_app(next(key for key, app in self.apps.items() if own in app.webhooks))
        return own

    async def report(
        self, count: int, appkey: str = APP, partition: int = 0, first_number: int = 0, msgid: int = 7
    ) -> list[str]:
        """Append one record with that many outcomes of a message; return the ids of their events."""
        meta = self.meta()
        self.outcomes += count
        rows = range(count)
        of_app = AppOutcomes(
            appkey=appkey,
            msgids=struct.pack(f"<{count}Q", *(msgid for _ in rows)),
            numbers=struct.pack(f"<{count}I", *(first_number + row for row in rows)),
            kinds=bytes([RECEIVED]) * count,
            times_ms=struct.pack(f"<{count}q", *(self.clock.now_ms() for _ in rows)),
            reason_indexes=bytes(count),
        )
        fact = DeliveryFact(meta=meta, outcomes=Outcomes(apps=[of_app]))
        await self.log.append([NewRecord(DELIVERIES.name, partition, b"p", fact.SerializeToString())])
        return [f"{meta.event_id.hex()}.{row}" for row in rows]

    def meta(self) -> Meta:
        return Meta(event_id=ids.event_id(), time_ms=self.clock.now_ms())

    async def moving(self, condition: Callable[[], bool], step_s: float = 1) -> None:
        """Move the clock until the condition holds."""

        def holds() -> bool:
            if condition():
                return True
            self.clock.move(step_s)
            return False

        await until_holds(holds)


@pytest.fixture
async def receiver() -> AsyncIterator[WebhookReceiver]:
    async with webhook_receiver() as running:
        yield running


@pytest.fixture
async def other_receiver() -> AsyncIterator[WebhookReceiver]:
    async with webhook_receiver() as running:
        yield running


@pytest.fixture
async def installation(
    tmp_path: Path, receiver: WebhookReceiver, other_receiver: WebhookReceiver
) -> AsyncIterator[Installation]:
    made = Installation(tmp_path, [receiver.host, other_receiver.host])
    yield made
    await made.log.close()
