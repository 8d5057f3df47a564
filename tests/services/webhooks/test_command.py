"""`carillon webhook` against a running registry and webhooks role, which tell a receiver of a new device."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from protos.accounts.v1.accounts_pb2 import Team
from protos.accounts.v1.service_pb2 import ListTeamsRequest, ListTeamsResponse, TeamSummary
from protos.accounts.v1.service_pb2_grpc import (
    AccountsServiceServicer,
    add_AccountsServiceServicer_to_server,
)
from services.domain.topics import TOPICS
from services.log.sqlite.log import SqliteLog
from services.net.rpc.caller import UserSocket
from services.net.rpc.server import Context, RpcListener, serve
from services.process.clock import ManualClock
from services.registry.settings import RegistrySettings
from services.webhooks.main import build
from services.webhooks.settings import WebhooksSettings
from testkit.services import running_services
from testkit.waiting import until_holds
from testkit.webhook_receiver import WebhookReceiver, answering
from tests.services.registry.command import Outcome, run
from tests.services.registry.conftest import NOON_MS, PARTITIONS, RunningRegistry, register

TEAM = "5e0f2c1d0f5f4c1e"


class Accounts(AccountsServiceServicer):
    """Knows one team, as `carillon team` names it."""

    async def ListTeams(self, request: ListTeamsRequest, context: Context) -> ListTeamsResponse:
        known = request.team in ("News", TEAM)
        return ListTeamsResponse(teams=[TeamSummary(team=Team(team_id=TEAM, name="News"))] if known else [])


class Commands:
    """The command in a data directory whose socket reaches the registry and webhooks."""

    def __init__(self, registry: RunningRegistry) -> None:
        self.registry = registry

    async def __call__(self, *arguments: str) -> Outcome:
        return await run(self.registry.settings.data_dir, *arguments, group="webhook")


@pytest.fixture
async def carillon(tmp_path: Path, receiver: WebhookReceiver) -> AsyncIterator[Commands]:
    log = SqliteLog(tmp_path / "log.sqlite", TOPICS, partitions=PARTITIONS)
    given = {"data_dir": str(tmp_path), "partitions": PARTITIONS, "webhook_hosts": receiver.host}
    registry = RunningRegistry(RegistrySettings(**given), log, ManualClock(NOON_MS))  # type: ignore[arg-type]
    await registry.start()
    role = build(WebhooksSettings(**given), registry.context)  # type: ignore[arg-type]
    user_socket = UserSocket("commands", tmp_path / "carillon.sock")
    server = serve([f"unix:{user_socket.inner}"], users=user_socket.users)
    for add in (*registry.role.servicers, role.servicers[0]):
        add(server)
    add_AccountsServiceServicer_to_server(Accounts(), server)  # type: ignore[abstract]
    async with running_services([*role.services, RpcListener("calls", server), user_socket]):
        yield Commands(registry)
    user_socket.close()
    await registry.stop()
    await log.close()


async def test_a_webhook_from_its_making_to_its_end(carillon: Commands, receiver: WebhookReceiver) -> None:
    app = await carillon.registry.app()
    made = (await carillon("add", app.appkey, receiver.url, "--kind", "device.registered", "--json")).lines[0]
    webhook_id = made["webhook"]
    assert made["secret"].startswith("whsec_")
    assert (made["url"], made["kinds"], made["form"]) == (receiver.url, ["device.registered"], "standard")

    async def state() -> str:
        return (await carillon("list", app.appkey)).out

    async with asyncio.timeout(30):
        while "not begun yet" in (listed := await state()):
            await asyncio.sleep(0.02)
    assert "ok" in listed
    assert f"http://{receiver.host}" in listed
    assert "/hook" not in listed  # the path may be a secret of the receiver

    await carillon.registry.apply(register(app, "token-a"))
    await receiver.until_events(1)
    assert [(event["type"], event["data"]) for event in receiver.events] == [
        ("device.registered", {"token": "token-a"})
    ]

    tested = await carillon("test", app.appkey, webhook_id)
    assert "took the test event: HTTP 204" in tested.out
    receiver.next = [answering(500)]
    refused = await carillon("test", app.appkey, webhook_id)
    assert (refused.code, "did not take the test event: HTTP 500" in refused.out) == (1, True)

    (attempt,) = (await carillon("attempts", app.appkey, webhook_id, "--json")).lines
    assert (attempt["status"], attempt["events"]) == (204, 1)
    assert "HTTP 204" in (await carillon("attempts", app.appkey, webhook_id)).out

    first = datetime.fromtimestamp(NOON_MS / 1000, UTC).isoformat()
    carillon.registry.clock.move(60)
    last = datetime.fromtimestamp(NOON_MS / 1000 + 30, UTC).isoformat()
    again = await carillon("resend", app.appkey, webhook_id, "--from", first, "--to", last)
    assert "are being sent again" in again.out
    await until_holds(lambda: [event["type"] for event in receiver.events].count("device.registered") == 2)
    assert len({event["id"] for event in receiver.events if event["type"] == "device.registered"}) == 1

    rotated = (await carillon("rotate-secret", app.appkey, webhook_id, "--keep-old", "1h", "--json")).lines[0]
    assert rotated["secret"] != made["secret"]
    assert rotated["old_secret_until_ms"] == carillon.registry.clock.now_ms() + 3_600_000
    changed = await carillon("set", app.appkey, webhook_id, "--kind", "all", "--push", "7", "--state", "off", "--json")
    assert (changed.lines[0]["kinds"], changed.lines[0]["pushes"], changed.lines[0]["state"]) == ([], [7], "off")
    assert "secret" not in changed.lines[0]
    for given, labels in (("spring", ["spring"]), ("all", [])):
        labelled = await carillon("set", app.appkey, webhook_id, "--label", given, "--json")
        assert (labelled.lines[0]["labels"], labelled.lines[0]["pushes"]) == (labels, [7])
    assert "off" in await state()
    assert (await carillon("resume", app.appkey, webhook_id)).code == 0
    assert "is removed" in (await carillon("remove", app.appkey, webhook_id)).out
    assert "There is no webhook yet" in await state()


async def test_a_webhook_of_a_team(carillon: Commands, receiver: WebhookReceiver) -> None:
    made = (await carillon("add", "team/News", receiver.url, "--json")).lines[0]
    async with asyncio.timeout(30):
        while "not begun yet" in (listed := (await carillon("list", f"team/{TEAM}")).out):
            await asyncio.sleep(0.02)
    assert made["webhook"] in listed
    assert (await carillon("test", "team/News", made["webhook"])).code == 0
    assert receiver.taken[0].target == "/hook"
    assert (await carillon("set", "team/News", made["webhook"], "--state", "off")).code == 0
    assert "is removed" in (await carillon("remove", "team/News", made["webhook"])).out
    assert "There is no webhook yet" in (await carillon("list", "team/News")).out


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("add", "APP", "http://hooks.example.org/"), "CARILLON_WEBHOOK_HOSTS=HOST:PORT"),
        (("add", "APP", "https://hooks.example.org/", "--kind", "push.exploded"), "is no kind of event: push.accepted"),
        (("add", "APP", "https://hooks.example.org/", "--push", "x"), "is no message id"),
        (("add", "1", "https://hooks.example.org/"), "no app with appkey"),
        (("add", "team/Weather", "https://hooks.example.org/"), "there is no team 'Weather'"),
        (("set", "team/News", "ID", "--state", "off"), f"team {TEAM} has no webhook 'ID'"),
        (("set", "APP", "ID", "--state", "off"), "has no webhook 'ID'"),
        (("attempts", "APP", "ID"), "has no webhook 'ID'"),
        (("test", "APP", "ID"), "has no webhook 'ID'"),
        (("resend", "APP", "ID", "--from", "yesterday"), "must look like 2026-11-21"),
    ],
)
async def test_mistakes_are_one_clear_line(carillon: Commands, arguments: tuple[str, ...], told: str) -> None:
    app = await carillon.registry.app()
    outcome = await carillon(*(app.appkey if each == "APP" else each for each in arguments))
    assert outcome.code != 0
    assert told in outcome.err
    assert "Traceback" not in outcome.err
