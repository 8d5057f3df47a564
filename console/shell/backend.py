"""The console's access to the service: stubs of the roles, shared answers, and the apps that an account may see."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, cast
from zoneinfo import ZoneInfo

import falcon
from falcon.asgi import Request, Response

from console.devices.erasures import ErasureDirectory
from console.overview.installation import Observer
from console.send.audience import Audiences
from console.send.composed_pushes import ComposedPushes
from console.send.values import AudienceValues
from console.shell.access import Requester
from edge.core.tasks import BroadcastCancel, TaskCalls
from protos.accounts.v1.accounts_pb2 import Team
from protos.accounts.v1.drafts_pb2_grpc import DraftsServiceStub
from protos.accounts.v1.service_pb2_grpc import AccountsServiceStub, LogInServiceStub
from protos.analytics.v1.analytics_pb2_grpc import AnalyticsServiceStub
from protos.registry.v1.apps_pb2 import App
from protos.registry.v1.registry_pb2_grpc import RegistryServiceStub
from services.domain.accounts import AccountDirectory
from services.domain.apps import AppDirectory
from services.domain.permissions import Action
from services.errors import Code, NotFoundError
from services.process.clock import Clock
from services.replica.peers import Peers

if TYPE_CHECKING:
    from protos.accounts.v1.drafts_pb2_grpc import DraftsServiceAsyncStub
    from protos.accounts.v1.service_pb2_grpc import AccountsServiceAsyncStub, LogInServiceAsyncStub
    from protos.analytics.v1.analytics_pb2_grpc import AnalyticsServiceAsyncStub
    from protos.registry.v1.registry_pb2_grpc import RegistryServiceAsyncStub


# Stubs of the calls of the console to other roles: the calls that the commands and the interfaces make too.

ANALYTICS_S = 20.0
"""How long a page waits for an answer of analytics, seconds."""


@dataclass(frozen=True)
class RoleStubs:
    """Stubs of the roles whose calls go to one instance. Calls about devices find theirs through `peers`."""

    accounts: "AccountsServiceAsyncStub"
    log_ins: "LogInServiceAsyncStub"
    drafts: "DraftsServiceAsyncStub"
    registry: "RegistryServiceAsyncStub"
    analytics: "AnalyticsServiceAsyncStub"
    peers: Peers
    partitions: int

    @classmethod
    def of(cls, peers: Peers, partitions: int) -> "RoleStubs":
        return cls(
            AccountsServiceStub(peers.all("accounts")[0]),
            LogInServiceStub(peers.all("accounts")[0]),
            DraftsServiceStub(peers.all("accounts")[0]),
            RegistryServiceStub(peers.all("registry")[0]),
            AnalyticsServiceStub(peers.all("analytics")[0]),
            peers,
            partitions,
        )


@dataclass(frozen=True, kw_only=True)
class Backend:
    """The roles' stubs, the directories of apps and accounts, and the objects that send and cancel pushes.

    `zone`: the time zone of the public interfaces. `backup_days`: for how long backups are kept, if that is known.
    """

    roles: RoleStubs
    apps: AppDirectory
    accounts: AccountDirectory
    clock: Clock
    zone: ZoneInfo
    composed_pushes: ComposedPushes
    audiences: Audiences
    audience_values: AudienceValues
    tasks: TaskCalls
    broadcasts: BroadcastCancel
    erasures: ErasureDirectory
    observer: Observer
    backup_days: int | None


# Answers of analytics that several pages share: the same question is asked once within two seconds.
#
# Analytics may answer without the records of the last two seconds, so that it need not ingest them for each question.

MAX_AGE_MS = 2_000
"""Greatest age of a shared answer, and of the newest records that it may lack when it is made."""

_METHODS = (
    *("AuditPush", "AuditDevice", "AuditActions", "Statistics", "LatestPushes"),
    *("PushSpeed", "PushStates", "ListPushDevices", "ListRefusals"),
)
_Call = Callable[..., Awaitable[Any]]


class _Question(Protocol):
    """A request whose answer may lack the records of some milliseconds."""

    max_age_ms: int

    def SerializeToString(self, *, deterministic: bool = ...) -> bytes: ...


class _Asked(NamedTuple):
    """A question: when it was asked, and its answer, which may not be there yet."""

    at_ms: int
    answer: "asyncio.Task[Any]"


class SharedAnswers:
    """Asks analytics for pages, so that fifty readers of a page cost it as much as one.

    It is a Falcon middleware too: after each change it forgets all answers, and for some seconds its questions make
    analytics ingest all records first, so that pages show what the change did.
    Errors are not shared with later readers.
    """

    def __init__(self, analytics: "AnalyticsServiceAsyncStub", clock: Clock) -> None:
        self._clock = clock
        self._asked: dict[tuple[str, bytes], _Asked] = {}
        self._changed_ms = 0
        for method in _METHODS:
            setattr(self, method, self._shared(method, getattr(analytics, method)))

    @property
    def stub(self) -> "AnalyticsServiceAsyncStub":
        """The calls, as those of the stub."""
        return cast("AnalyticsServiceAsyncStub", self)

    async def process_response(self, request: Request, response: Response, resource: Any, succeeded: bool) -> None:
        if request.method in ("POST", "DELETE"):
            self._asked.clear()
            self._changed_ms = self._clock.now_ms()

    def _shared(self, method: str, call: _Call) -> _Call:
        async def answer(request: _Question, timeout: float) -> Any:
            key = method, request.SerializeToString(deterministic=True)
            asked = self._recent(key)
            if asked is None:
                request.max_age_ms = self._max_age_ms()
                asked = _Asked(self._clock.now_ms(), asyncio.create_task(_once(call, request, timeout)))
                self._asked[key] = asked
                asked.answer.add_done_callback(lambda task: self._drop_if_failed(key, task))
            # Shielded: a reader who leaves must not cancel the call of the others.
            return await asyncio.shield(asked.answer)

        return answer

    def _recent(self, key: tuple[str, bytes]) -> _Asked | None:
        oldest_ms = self._clock.now_ms() - MAX_AGE_MS
        for old in [each for each, asked in self._asked.items() if asked.at_ms <= oldest_ms]:
            del self._asked[old]
        return self._asked.get(key)

    def _max_age_ms(self) -> int:
        """Return how many milliseconds of records an answer may lack: none until 2 * MAX_AGE_MS after a POST."""
        return MAX_AGE_MS if self._clock.now_ms() - self._changed_ms >= 2 * MAX_AGE_MS else 0

    def _drop_if_failed(self, key: tuple[str, bytes], task: "asyncio.Task[Any]") -> None:
        has_failed = task.cancelled() or task.exception() is not None
        if has_failed and (asked := self._asked.get(key)) is not None and asked.answer is task:
            del self._asked[key]


async def _once(call: _Call, request: _Question, timeout: float) -> Any:
    return await call(request, timeout=timeout)


# The apps and teams that an account may see.


def visible_apps(backend: Backend, requester: Requester) -> list[App]:
    """Return the apps that the account may see, by name."""
    seen = [app for app in backend.apps.all() if requester.may_app(Action.VIEW, app.appkey)]
    return sorted(seen, key=lambda app: (app.name.casefold(), app.appkey))


def visible_teams(backend: Backend, requester: Requester) -> list[Team]:
    """Return the teams that the account may see, by name."""
    return [team for team in backend.accounts.teams() if requester.may(Action.VIEW, team.team_id)]


def app_of(backend: Backend, appkey: str) -> App:
    """Return the app of a path. HTTP 404: there is none."""
    app = backend.apps.get(appkey)
    if app is None:
        raise falcon.HTTPNotFound
    return app


def team_of(backend: Backend, team_id: str) -> Team:
    """Return the team of a path. NotFoundError: there is none."""
    team = backend.accounts.team(team_id)
    if team is None:
        raise NotFoundError(Code.NO_SUCH_TEAM, team_id=team_id)
    return team
