"""The accounts role on an embedded log, started and stopped as a process would, and killed in chosen appends."""

import contextlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import argon2
import pytest
from pyroaring import BitMap

from protos.accounts.v1.accounts_pb2 import MemberRole
from protos.accounts.v1.drafts_pb2 import DecideDraftRequest, Draft, DraftApproved, StoredDraft, SubmitDraftRequest
from protos.accounts.v1.drafts_pb2_grpc import DraftsServiceStub
from protos.accounts.v1.service_pb2 import (
    CreateTeamRequest,
    CreateUserRequest,
    GiveAppRequest,
    LogInRequest,
    LogInResponse,
    LogInResult,
    SetMemberRequest,
    UseLinkRequest,
    UserSummary,
)
from protos.accounts.v1.service_pb2_grpc import AccountsServiceStub, LogInServiceStub
from protos.push.v1.push_pb2 import Audience, Everyone, Message, SendPush
from protos.registry.v1.apps_pb2 import App, AppFact
from protos.registry.v1.registry_pb2 import ErasePersonRequest, ErasePersonResponse
from protos.registry.v1.registry_pb2_grpc import RegistryServiceServicer, add_RegistryServiceServicer_to_server
from protos.runtime.v1.log_pb2 import Meta, Origin
from protos.scheduling.v1.scheduling_pb2 import CreateTask
from protos.targeting.v1.targeting_pb2 import PartitionAudience, ResolveRequest, ResolveResponse
from protos.targeting.v1.targeting_pb2_grpc import TargetingServiceServicer, add_TargetingServiceServicer_to_server
from services.accounts.main import build, open_state
from services.accounts.settings import AccountsSettings
from services.domain.accounts import AccountDirectory
from services.domain.apps import AppDirectory
from services.domain.ids import event_id
from services.domain.master_key import Keys, MasterKey
from services.domain.role import BuiltRole, RoleContext
from services.domain.topics import APPS, TOPICS, decode
from services.errors import CarillonError, UnavailableError
from services.log.port import NewRecord, Partition
from services.log.sqlite.log import SqliteLog
from services.net.rpc.local import LocalServer
from services.net.rpc.server import Server
from services.process.clock import ManualClock
from services.replica.peers import Peers
from services.replica.replay import ReplaySource, rebuild
from testkit.faults.crashing_log import KillingLog, records_of
from testkit.services import add_servicers, running_services

START_MS = 1_800_000_000_000
APP = "1000000001"
OTHER_APP = "1000000002"
PASSWORD = "correct horse battery"
CHEAP = argon2.PasswordHasher(time_cost=1, memory_cost=8, parallelism=1)
OPERATOR = Origin(interface="cli", address="root@host")
FRONT_END = Origin(interface="console", address="192.0.2.7")


def origin_of(user: UserSummary) -> Origin:
    """Return the origin of a request that the front end makes for a user."""
    return Origin(interface="console", address="192.0.2.7", actor=f"user/{user.user_id}")


class ScriptedTargeting(TargetingServiceServicer):
    """Targeting that answers with as many devices as a test says: of an app, and of each filter by its first tag."""

    def __init__(self) -> None:
        self.devices: dict[str, int] = {}
        self.tagged: dict[int, int] = {}
        self.is_away = False

    async def Resolve(self, request: ResolveRequest, context: Any) -> ResolveResponse:
        if self.is_away:
            raise UnavailableError("targeting is away")
        count = self.devices.get(request.appkey, 0)
        if request.audience.HasField("filter"):
            count = self.tagged[request.audience.filter.tags[0].tags[0]]
        bitmaps = [BitMap(range(place, count, len(request.partitions))) for place in range(len(request.partitions))]
        return ResolveResponse(
            partitions=[
                PartitionAudience(partition=number, bitmap=bitmap.serialize(), count=len(bitmap))
                for number, bitmap in zip(request.partitions, bitmaps, strict=True)
            ]
        )


class ScriptedRegistry(RegistryServiceServicer):
    """A registry that erases no one: it notes each request, and answers for a device "token-1" in lower case."""

    def __init__(self) -> None:
        self.asked: list[ErasePersonRequest] = []
        self.error: CarillonError | None = None

    @property
    def erasures(self) -> list[ErasePersonRequest]:
        return [request for request in self.asked if not request.dry_run]

    async def ErasePerson(self, request: ErasePersonRequest, context: Any) -> ErasePersonResponse:
        self.asked.append(request)
        if self.error is not None and not request.dry_run:
            raise self.error
        if request.dry_run:
            return ErasePersonResponse(devices=2, token=request.token.lower())
        return ErasePersonResponse(erasure_id=request.erasure_id or "0123456789abcdef", devices=2, time_ms=START_MS)


@dataclass
class AccountsHarness:
    """The accounts role on one data directory, log and clock; it can be started and stopped repeatedly."""

    directory: Path
    log: KillingLog
    clock: ManualClock = field(default_factory=lambda: ManualClock(START_MS))
    keys: Keys = field(default_factory=lambda: MasterKey(bytes(32)))
    hasher: argon2.PasswordHasher = CHEAP
    server: LocalServer = field(default_factory=LocalServer)
    targeting: ScriptedTargeting = field(default_factory=ScriptedTargeting)
    targeting_server: LocalServer = field(default_factory=LocalServer)
    registry: ScriptedRegistry = field(default_factory=ScriptedRegistry)
    registry_server: LocalServer = field(default_factory=LocalServer)
    users: int = 0
    directory_of_accounts: AccountDirectory = field(init=False)

    @property
    def settings(self) -> AccountsSettings:
        return AccountsSettings(data_dir=str(self.directory), partitions=4)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[BuiltRole]:
        self.server = LocalServer()
        self.directory_of_accounts = AccountDirectory(self.log)
        add_TargetingServiceServicer_to_server(self.targeting, cast(Server, self.targeting_server))
        add_RegistryServiceServicer_to_server(self.registry, cast(Server, self.registry_server))
        servers = {"accounts": self.server, "targeting": self.targeting_server, "registry": self.registry_server}
        channels = {name: [server.channel()] for name, server in servers.items()}
        peers = Peers({**channels, "scheduling": []}, TOPICS)
        apps = AppDirectory(self.log)
        role = build(self.settings, RoleContext(self.log, self.clock, peers, self.keys, apps), self.hasher)
        add_servicers(role, self.server)
        async with running_services([apps, self.directory_of_accounts, *role.services]):
            yield role

    @property
    def accounts(self) -> Any:
        return AccountsServiceStub(self.server.channel())

    @property
    def log_ins(self) -> Any:
        return LogInServiceStub(self.server.channel())

    @property
    def drafts(self) -> Any:
        return DraftsServiceStub(self.server.channel())

    async def add_app(self, appkey: str = APP) -> None:
        fact = AppFact(meta=Meta(event_id=event_id(), time_ms=START_MS), app=App(appkey=appkey))
        await self.log.append([NewRecord(APPS.name, 0, appkey.encode(), fact.SerializeToString())])

    async def user(self, login: str = "", *, administrator: bool = False, password: str = PASSWORD) -> UserSummary:
        """Create a user and set the password, if it is not empty."""
        self.users += 1
        request = CreateUserRequest(login=login or f"user{self.users}", administrator=administrator, origin=OPERATOR)
        made = await self.accounts.CreateUser(request)
        if not password:
            return made.user  # type: ignore[no-any-return]
        use = UseLinkRequest(link_token=made.link_token, new_password=password, origin=FRONT_END)
        return (await self.log_ins.UseLink(use)).user  # type: ignore[no-any-return]

    async def team(self, *members: tuple[UserSummary, str], appkeys: Sequence[str] = (APP,), name: str = "News") -> str:
        """Create a team with these members and apps; return its id."""
        team_id = (await self.accounts.CreateTeam(CreateTeamRequest(name=name, origin=OPERATOR))).team.team.team_id
        for user, role in members:
            number = MemberRole.Value(f"MEMBER_ROLE_{role.upper()}")
            await self.accounts.SetMember(
                SetMemberRequest(team_id=team_id, user_id=user.user_id, role=number, origin=OPERATOR)
            )
        for appkey in appkeys:
            await self.add_app(appkey)
            await self.accounts.GiveApp(GiveAppRequest(appkey=appkey, team_id=team_id, origin=OPERATOR))
        return str(team_id)

    async def log_in(self, login: str, password: str = PASSWORD, code: str = "", address: str = "") -> LogInResponse:
        origin = Origin(interface="console", address=address or "192.0.2.7")
        request = LogInRequest(login=login, password=password, code=code, origin=origin)
        return await self.log_ins.LogIn(request)  # type: ignore[no-any-return]

    async def result(self, login: str, password: str = PASSWORD, code: str = "", address: str = "") -> str:
        answer = await self.log_in(login, password, code, address)
        return LogInResult.Name(answer.result).removeprefix("LOG_IN_RESULT_")

    async def submit(self, author: UserSummary, team_id: str, draft: Draft | None = None, **more: Any) -> StoredDraft:
        content = draft or push_draft()
        content.team_id = team_id
        request = SubmitDraftRequest(draft=content, origin=origin_of(author), **more)
        return (await self.drafts.SubmitDraft(request)).draft  # type: ignore[no-any-return]

    async def approve(self, person: UserSummary, draft: StoredDraft) -> StoredDraft:
        approved = DraftApproved(digest=draft.draft.digest)
        request = DecideDraftRequest(draft_id=draft.draft.draft_id, approved=approved, origin=origin_of(person))
        return (await self.drafts.DecideDraft(request)).draft  # type: ignore[no-any-return]

    async def facts(self, topic: str, kind: str = "") -> list[Any]:
        """Return the facts or commands of a topic, all or those of a kind, without the announcements of epochs."""
        partitions = range(TOPICS[topic].partitions(4))
        messages = [decode(record) for p in partitions for record in await records_of(self.log, Partition(topic, p))]
        oneof = TOPICS[topic].envelope.DESCRIPTOR.oneofs[0].name
        return [each for each in messages if (found := each.WhichOneof(oneof)) and kind in ("", found)]

    async def rebuilt_digest(self) -> str:
        """Return the digest of the state that a replay of the whole log builds."""
        ends = await self.log.ends([Partition(name, 0) for name in ("accounts", "log-ins", "drafts", "erasures")])
        directory = self.directory / "rebuilt"
        source = ReplaySource(self.log, ends)
        return await rebuild(lambda path, log: open_state(self.settings, path, log), directory, source)

    def digest(self) -> str:
        """Return the digest of the stored state; the role must not be running."""
        state = open_state(self.settings, self.settings.state_dir("accounts"), self.log)
        try:
            return state.digest()
        finally:
            state.close()


def push_draft(appkey: str = APP, content: str = "hello", *, due_ms: int = 0, draft_id: str = "") -> Draft:
    push = SendPush(
        msgid=7, id_count=1, appkey=appkey, audience=Audience(everyone=Everyone()), message=Message(content=content)
    )
    return Draft(
        draft_id=draft_id,
        body_json=b"{}",
        task=CreateTask(pushes=[push], due_ms=due_ms),
        is_broadcast=True,
        estimated_devices=20_000,
    )


@pytest.fixture
async def harness(tmp_path: Path) -> AsyncIterator[AccountsHarness]:
    log = SqliteLog(tmp_path / "log.sqlite", TOPICS, partitions=4)
    yield AccountsHarness(tmp_path, KillingLog(log))
    await log.close()
