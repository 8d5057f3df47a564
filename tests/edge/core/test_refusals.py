"""Refused requests are recorded for the apps that exist: with answer, time and caller, and not too many."""

import httpx
import pytest

from edge.core import refusals
from edge.core.answers import refusal_words
from protos.registry.v1.apps_pb2 import App
from protos.registry.v1.registry_pb2 import PauseAppsRequest
from protos.registry.v1.registry_pb2_grpc import RegistryServiceStub
from protos.runtime.v1.refusals_pb2 import Refusal
from services.domain.topics import REFUSALS, decode
from services.errors import BusyError, Code, InputError, TooManyRequestsError, UnavailableError
from services.log.port import Partition
from services.process.metrics import REFUSALS_LEFT_OUT
from testkit.edge.role import NOW_MS, EdgeInstallation
from testkit.edge.v2_bodies import broadcast
from testkit.signing import signed
from testkit.waiting import until


async def recorded(installation: EdgeInstallation, count: int) -> list[Refusal]:
    """Return the recorded refusals once there are so many."""
    found: list[Refusal] = []

    async def are_there() -> bool:
        installation.clock.move(1)
        page = await installation.log.select({Partition(REFUSALS.name, 0): 0}, 10_000)
        found[:] = [each for record in page.records for each in decode(record).refusals.refusals]
        return len(found) >= count

    await until(are_there)
    return found


async def send(installation: EdgeInstallation, app: App, secret: str = "", **changed: object) -> httpx.Response:
    body = signed({**broadcast(app), **changed}, secret or installation.secrets[app.appkey])
    return await installation.http.post("/v2/push", content=body)


async def test_what_was_refused_is_recorded_for_its_app(installation: EdgeInstallation) -> None:
    app, other = await installation.app(), await installation.app()
    assert (await send(installation, app, "a secret that was replaced")).json()["result"] == 401
    assert (await send(installation, app, option={"period": "soon"})).json()["result"] == 400
    assert (await send(installation, other)).json()["result"] == 0
    unknown = App(appkey="9999999999")
    assert (await send(installation, unknown, "any")).json()["result"] == 401
    registry = RegistryServiceStub(installation.context.peers.all("registry")[0])
    await registry.PauseApps(PauseAppsRequest(appkey=app.appkey, reason="leak"))
    legacy = signed({"appkey": app.appkey, "message": "m", "is_notif": 1}, installation.secrets[app.appkey])
    assert (await installation.android.post("/push", content=legacy)).status_code == 403
    found = await recorded(installation, 3)
    assert {each.appkey for each in found} == {app.appkey}
    assert [(each.origin.interface, each.call, each.result, each.code, each.is_signed) for each in found] == [
        ("v2", "POST /v2/push", 401, "", False),
        ("v2", "POST /v2/push", 400, found[1].code, True),
        ("android", "POST /push", 403, "APP_PAUSED", True),
    ]
    assert found[0].answer == "sign not correct"
    assert found[1].answer.startswith("option.period")
    assert {each.origin.address for each in found} == {"127.0.0.1"}
    assert found[0].time_ms >= NOW_MS


async def test_too_many_of_one_app_are_left_out_and_counted(
    installation: EdgeInstallation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(refusals, "MAX_UNSIGNED", 2)
    app, other = await installation.app(), await installation.app()
    for _ in range(5):
        await send(installation, app, "wrong")
    await send(installation, app, option=5)
    await send(installation, other, "wrong")
    found = await recorded(installation, 4)
    assert [(each.appkey, each.result, each.left_out) for each in found] == [
        (app.appkey, 401, 0),
        (app.appkey, 401, 0),
        (app.appkey, 400, 0),
        (other.appkey, 401, 0),
    ]
    installation.clock.move(60)
    await send(installation, app, "wrong")
    assert (await recorded(installation, 5))[-1].left_out == 3


async def test_an_answer_does_not_depend_on_the_record(
    installation: EdgeInstallation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(refusals, "MAX_WAITING", 1)
    app, append = await installation.app(), installation.log.append

    async def fail(records: object) -> list[int]:
        raise UnavailableError("the log is away")

    monkeypatch.setattr(installation.log, "append", fail)
    before = REFUSALS_LEFT_OUT._value.get()
    for _ in range(2):
        assert (await send(installation, app, "wrong")).json() == {"result": 401, "desc": "sign not correct"}

    async def is_left_out() -> bool:
        installation.clock.move(1)
        return bool(REFUSALS_LEFT_OUT._value.get() == before + 2)

    await until(is_left_out)
    monkeypatch.setattr(installation.log, "append", append)
    await send(installation, app, "wrong")
    (found,) = await recorded(installation, 1)
    assert found.left_out == 1


def test_values_of_a_request_are_not_recorded() -> None:
    assert (
        refusal_words(InputError(Code.NO_WHOLE_NUMBERS, at="tag", text="alice")) == "tag must be whole numbers, not …"
    )
    assert refusal_words(InputError("no such token: 3f")) == ""
    assert refusal_words(TooManyRequestsError(Code.OVER_TARGETS, 5, appkey="1", quota=2, wait_s=5)).startswith(
        "app 1 is"
    )
    assert refusal_words(BusyError("of this place")) == "internal error"
