"""A console with a real registry and real accounts behind it, and browsers without a screen that visit it."""

import itertools
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from html import unescape
from pathlib import Path
from types import CodeType
from typing import Any, cast

import argon2
import httpx
import jinja2
import pytest
from jinja2.bccache import Bucket

import services.accounts.main
import services.webhooks.main
from console.main import build
from console.settings import ConsoleSettings
from console.shell import backend, renderer
from protos.accounts.v1.accounts_pb2 import MemberRole
from protos.accounts.v1.service_pb2 import (
    CreateTeamRequest,
    CreateTokenRequest,
    CreateUserRequest,
    GiveAppRequest,
    SetMemberRequest,
    UseLinkRequest,
)
from protos.accounts.v1.service_pb2_grpc import AccountsServiceStub, LogInServiceStub
from protos.analytics.v1.analytics_pb2_grpc import add_AnalyticsServiceServicer_to_server
from protos.delivery.v1.delivery_pb2_grpc import (
    add_AppleStateServiceServicer_to_server,
    add_DeliveryServiceServicer_to_server,
)
from protos.registry.v1.apps_pb2 import PLATFORM_ANDROID, Platform
from protos.registry.v1.registry_pb2 import CreateAppRequest
from protos.registry.v1.registry_pb2_grpc import RegistryServiceStub
from protos.runtime.v1.log_pb2 import Origin
from protos.runtime.v1.log_pb2_grpc import add_PositionsServiceServicer_to_server
from services.accounts.settings import AccountsSettings
from services.domain.accounts import AccountDirectory
from services.domain.apps import AppDirectory
from services.domain.master_key import MasterKey
from services.domain.role import RoleContext
from services.domain.sealed_log import SealedLog
from services.domain.sealing import Sealer
from services.domain.topics import TOPICS
from services.log.sqlite.log import SqliteLog
from services.net.rpc.server import Server
from services.process.clock import ManualClock
from services.replica.peers import Peers
from services.replica.status_board import StatusBoard
from services.webhooks.settings import WebhooksSettings
from testkit.edge.owned_registry import OwnedRegistry
from testkit.edge.role import BACKENDS, SwitchedServer
from testkit.persons import key_ring
from testkit.services import add_servicers, running_services
from tests.console.scripted_analytics import ScriptedAnalytics
from tests.console.scripted_delivery import ScriptedDelivery

START_MS = 1_790_000_000_000
PARTITIONS = 4
ZONE = "Asia/Shanghai"
ROLES = ("accounts", "analytics", "delivery", "webhooks", *BACKENDS)
PASSWORD = "correct horse battery"
OPERATOR = Origin(interface="cli", address="root@host")
CHEAP = argon2.PasswordHasher(time_cost=1, memory_cost=8, parallelism=1)
_CSRF = re.compile(r'name="csrf" value="([^"]+)"')


class Browser:
    """Visits pages with a cookie of its own, and sends their forms with the CSRF token that stood in the last page."""

    def __init__(self, application: Any, **headers: str) -> None:
        address = headers.pop("address", "192.0.2.9")
        transport = httpx.ASGITransport(application, raise_app_exceptions=False, client=(address, 5000))
        self.http = httpx.AsyncClient(transport=transport, base_url="http://console", headers=headers)
        self.csrf = ""

    async def get(self, path: str, **headers: str) -> httpx.Response:
        answer = await self.http.get(path, headers=headers)
        self._note(answer)
        return answer

    async def post(self, path: str, *, csrf: str | None = None, **fields: str) -> httpx.Response:
        answer = await self.http.post(path, data={**fields, "csrf": self.csrf if csrf is None else csrf})
        self._note(answer)
        return answer

    async def log_in(self, login: str, password: str = PASSWORD) -> httpx.Response:
        await self.get("/log-in")
        answer = await self.post("/log-in", login=login, password=password)
        if answer.status_code == 303:
            await self.get("/account")
        return answer

    def _note(self, answer: httpx.Response) -> None:
        found = _CSRF.search(answer.text)
        self.csrf = found[1] if found else self.csrf


def text_of(answer: httpx.Response) -> str:
    """Return what a person reads of a page."""
    body = re.sub(r"(?s)<(head|script)\b.*?</\1>", " ", answer.text)
    return " ".join(unescape(re.sub(r"<[^>]*>", " ", body)).split())


class _Settled:
    """A stub, each of whose calls ends with `settle`."""

    def __init__(self, stub: Any, settle: Callable[[], Awaitable[None]]) -> None:
        self._stub = stub
        self._settle = settle

    def __getattr__(self, name: str) -> Callable[[Any], Awaitable[Any]]:
        async def call(request: Any) -> Any:
            answer = await getattr(self._stub, name)(request)
            await self._settle()
            return answer

        return call


@dataclass
class ConsoleInstallation:
    """A running console, and helpers to make users, teams and apps behind it.

    `owned_registry` is in use where the installation was made with `has_owner`.
    """

    application: Any
    log: SqliteLog
    peers: Peers
    clock: ManualClock
    analytics: ScriptedAnalytics
    delivery: ScriptedDelivery
    servers: dict[str, SwitchedServer]
    context: RoleContext
    settings: ConsoleSettings
    board: StatusBoard
    owned_registry: OwnedRegistry
    directories: list[AppDirectory | AccountDirectory]
    browsers: list[Browser] = field(default_factory=list)

    @property
    def accounts(self) -> Any:
        """The accounts' stub, whose calls return once the console has read what they wrote."""
        return _Settled(AccountsServiceStub(self.peers.all("accounts")[0]), self.settle)

    async def settle(self) -> None:
        """Wait until the console has read every record of apps and accounts that is in the log now."""
        for directory in self.directories:
            assert await directory.refresh()

    def browser(self, **headers: str) -> Browser:
        browser = Browser(self.application, **headers)
        self.browsers.append(browser)
        return browser

    async def user(self, login: str, *, administrator: bool = False) -> str:
        """Create a user with the password PASSWORD; return the id."""
        request = CreateUserRequest(login=login, administrator=administrator, origin=OPERATOR)
        made = await self.accounts.CreateUser(request)
        use = UseLinkRequest(link_token=made.link_token, new_password=PASSWORD, origin=Origin(interface="console"))
        await LogInServiceStub(self.peers.all("accounts")[0]).UseLink(use)
        await self.settle()
        return str(made.user.user_id)

    async def logged_in(self, login: str) -> Browser:
        browser = self.browser()
        assert (await browser.log_in(login)).status_code == 303
        return browser

    async def app(
        self, name: str = "News", team_id: str = "", platform: "Platform.ValueType" = PLATFORM_ANDROID
    ) -> str:
        """Register an app of a team; return the appkey."""
        request = CreateAppRequest(platform=platform, name=name, package="org.example.news", origin=OPERATOR)
        appkey = str((await RegistryServiceStub(self.peers.all("registry")[0]).CreateApp(request)).app.appkey)
        if team_id:
            await self.accounts.GiveApp(GiveAppRequest(appkey=appkey, team_id=team_id, origin=OPERATOR))
        await self.settle()
        return appkey

    async def team(self, name: str, **roles: str) -> str:
        """Create a team, and users with these login names and roles in it; return the team's id."""
        made = await self.accounts.CreateTeam(CreateTeamRequest(name=name, origin=OPERATOR))
        team_id = str(made.team.team.team_id)
        for login, role in roles.items():
            user_id = await self.user(login)
            number = MemberRole.Value(f"MEMBER_ROLE_{role.upper()}")
            await self.accounts.SetMember(
                SetMemberRequest(team_id=team_id, user_id=user_id, role=number, origin=OPERATOR)
            )
        return team_id


class _CompiledTemplates(jinja2.BytecodeCache):
    """Keeps compiled templates in memory, for all consoles of a test run."""

    def __init__(self) -> None:
        self._compiled: dict[tuple[str, str], CodeType] = {}

    def load_bytecode(self, bucket: Bucket) -> None:
        bucket.code = self._compiled.get((bucket.key, bucket.checksum))

    def dump_bytecode(self, bucket: Bucket) -> None:
        assert bucket.code is not None
        self._compiled[bucket.key, bucket.checksum] = bucket.code


_COMPILED_TEMPLATES = _CompiledTemplates()


@pytest.fixture(autouse=True)
def shared_templates(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compile each template once: otherwise that is nearly half of what a test of a page costs."""
    monkeypatch.setattr(renderer, "Environment", partial(jinja2.Environment, bytecode_cache=_COMPILED_TEMPLATES))


@pytest.fixture(autouse=True)
def unshared_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each page ask analytics: the clock of these tests stands still, so shared answers would never be too old."""
    monkeypatch.setattr(backend, "MAX_AGE_MS", 0)


@pytest.fixture
async def console(tmp_path: Path) -> AsyncIterator[ConsoleInstallation]:
    async with running_console(tmp_path, ManualClock(START_MS)) as installation:
        yield installation


@asynccontextmanager
async def running_console(
    tmp_path: Path,
    clock: ManualClock,
    *,
    has_owner: bool = False,
    seals: bool = False,
    webhook_hosts: str = "",
    **console_settings: Any,
) -> AsyncIterator[ConsoleInstallation]:
    """Run a console with these settings beyond those of every test; `webhook_hosts` is one of all roles.

    `seals`: personal values are sealed in the log. `has_owner`: the registry's shard has an owner by the log, and
    callers find it there; see OwnedRegistry.
    """
    log = SqliteLog(tmp_path / "log.sqlite", TOPICS, partitions=PARTITIONS)
    servers = {name: SwitchedServer() for name in ROLES}
    analytics = ScriptedAnalytics()  # type: ignore[abstract]
    channels = {name: [server.channel()] for name, server in servers.items()}
    owned = OwnedRegistry(log, clock, servers["registry"])
    if has_owner:
        channels["registry"] = [owned.channel]
    peers = Peers(channels, TOPICS)
    apps = AppDirectory(log)
    board = StatusBoard(clock)
    used = SealedLog(log, Sealer(key_ring(tmp_path / "keys" / "persons")), seals=True) if seals else log
    context = RoleContext(used, clock, peers, MasterKey(bytes(32)), apps, board=board)
    data = str(tmp_path)
    backends = [
        build_role(
            settings(data_dir=data, partitions=PARTITIONS, timezone=ZONE, webhook_hosts=webhook_hosts),
            replace(context, membership=owned.membership if has_owner and name == "registry" else None),
        )
        for name, (settings, build_role) in BACKENDS.items()
    ]
    accounts = services.accounts.main.build(AccountsSettings(data_dir=data, partitions=PARTITIONS), context, CHEAP)
    of_webhooks = WebhooksSettings(data_dir=data, partitions=PARTITIONS, webhook_hosts=webhook_hosts)
    webhooks = services.webhooks.main.build(of_webhooks, context)
    settings_of_console = ConsoleSettings(data_dir=data, partitions=PARTITIONS, timezone=ZONE, **console_settings)
    console = build(settings_of_console, context)
    for role in backends:
        add_servicers(role, servers[role.name])
    add_servicers(accounts, servers["accounts"])
    add_servicers(webhooks, servers["webhooks"])
    delivery = ScriptedDelivery(log)  # type: ignore[abstract]
    add_DeliveryServiceServicer_to_server(delivery, cast(Server, servers["delivery"]))
    add_AppleStateServiceServicer_to_server(delivery, cast(Server, servers["delivery"]))
    add_PositionsServiceServicer_to_server(delivery, cast(Server, servers["delivery"]))
    add_AnalyticsServiceServicer_to_server(analytics, cast(Server, servers["analytics"]))
    installation = ConsoleInstallation(
        console.pages,
        log,
        peers,
        clock,
        analytics,
        delivery,
        servers,
        context,
        settings_of_console,
        board,
        owned,
        [apps, *(each for each in console.services if isinstance(each, AccountDirectory))],
    )
    async with AsyncExitStack() as stack:
        if has_owner:
            await stack.enter_async_context(owned.known_to_callers())
        await stack.enter_async_context(
            running_services([apps, *(each for role in (*backends, accounts, webhooks) for each in role.services)])
        )
        await stack.enter_async_context(running_services(console.services))
        yield installation
        for browser in installation.browsers:
            await browser.http.aclose()
    await log.close()


PREFIX = "/console/v1"


class Program:
    """Makes calls with an API token, or with none."""

    def __init__(self, application: Any, text: str) -> None:
        transport = httpx.ASGITransport(application, raise_app_exceptions=False, client=("192.0.2.9", 5000))
        headers = {"Authorization": f"Bearer {text}"} if text else {}
        self.http = httpx.AsyncClient(transport=transport, base_url="http://console", headers=headers)

    async def get(self, path: str, **query: str | int) -> httpx.Response:
        return await self.http.get(PREFIX + path, params=query or None)

    async def delete(self, path: str, **query: str | bool) -> httpx.Response:
        return await self.http.delete(PREFIX + path, params=query or None)

    async def post(self, path: str, body: Any = None, **headers: str) -> httpx.Response:
        found = {name.replace("_", "-"): value for name, value in headers.items()}
        return await self.http.post(PREFIX + path, json={} if body is None else body, headers=found)


@dataclass
class Programs:
    """Makes API tokens of teams, and programs that use them."""

    console: ConsoleInstallation
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    async def token(self, team_id: str, role: str, expires_in_s: int = 0) -> tuple[str, str]:
        """Return the id and the text of a new API token."""
        number = MemberRole.Value(f"MEMBER_ROLE_{role.upper()}")
        asked = CreateTokenRequest(
            team_id=team_id,
            name=f"{role} {next(self._numbers)}",
            role=number,
            expires_in_s=expires_in_s,
            origin=OPERATOR,
        )
        made = await self.console.accounts.CreateToken(asked)
        return made.token.token_id, made.text

    async def program(self, team_id: str, role: str) -> Program:
        return self.of_text((await self.token(team_id, role))[1])

    def of_text(self, text: str) -> Program:
        return Program(self.console.application, text)


@pytest.fixture
def programs(console: ConsoleInstallation) -> Programs:
    return Programs(console)
