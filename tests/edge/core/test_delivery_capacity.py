"""An app whose pushes wait in delivery is refused more of them in time, so that another app's push finds capacity."""

from pathlib import Path

import httpx
import pytest

from protos.registry.v1.apps_pb2 import App
from services.delivery import waiting_pushes
from services.delivery.main import build
from services.delivery.settings import DeliverySettings
from services.domain import push_capacity
from services.domain.topics import PUSHES, decode
from services.log.port import Partition
from services.process.metrics import QUOTA_REFUSALS
from testkit.delivery.settings import settings_without_vendors
from testkit.edge.role import BACKENDS, PARTITIONS, EdgeInstallation, edge_installation
from testkit.edge.v2_bodies import push_to
from testkit.signing import signed
from testkit.waiting import run_ready_tasks, until


def delivery_settings(**common: object) -> DeliverySettings:
    return settings_without_vendors(**common)


async def test_an_app_whose_pushes_fill_its_share_of_delivery_is_refused_and_another_app_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pushes wait because targeting is away. One app takes half of the budget, and its timed pushes wait then too."""
    monkeypatch.setattr(waiting_pushes, "MAX_WAITING_BYTES", 20_000)
    monkeypatch.setattr(push_capacity, "ASK_BYTES", 1_000)
    backends = {**BACKENDS, "delivery": (delivery_settings, build)}
    async with edge_installation(tmp_path, backends) as installation:
        noisy, quiet = await installation.app(), await installation.app()
        await installation.device(quiet, "phone")

        async def send(app: App, **changes: object) -> httpx.Response:
            style = {"basic": {"content": "x" * 1000, "is_notif": 1}}
            body = {**push_to(app, 6, stag=[["news"]]), "msgStyle": style, **changes}
            answer = await installation.http.post("/v2/push", content=signed(body, installation.secrets[app.appkey]))
            await run_ready_tasks()
            return answer

        with installation.servers["targeting"].away():
            accepted = 0
            while (answer := await send(noisy)).status_code == 200:
                accepted += 1
            assert 5 < accepted < 12
            assert (answer.status_code, answer.headers["retry-after"]) == (429, "1")
            assert QUOTA_REFUSALS.labels(noisy.appkey, "waiting")._value.get() == 1
            assert f"too many pushes of app {noisy.appkey} wait to be sent already" in answer.json()["desc"]
            await send(noisy, option={"timed": 2, "send_time_interval": 1})
            installation.clock.move(2)
            assert (await send(quiet, **push_to(quiet, 5, token={"android": "phone"}))).json()["result"] == 0
            (unicast,) = [push for push in await installation.sent() if push.appkey == quiet.appkey]
            await until_started(installation, unicast.msgid)
            assert (await send(noisy)).status_code == 429
            assert len(await installation.sent()) == accepted + 1

        async def is_sent() -> bool:
            installation.clock.move(1)
            await run_ready_tasks()
            return len(await installation.sent()) == accepted + 2

        async def is_accepted() -> bool:
            return (await send(noisy)).status_code == 200

        await until(is_sent)
        await until(is_accepted)


async def until_started(installation: EdgeInstallation, msgid: int) -> None:
    reader = await installation.log.open({Partition(PUSHES.name, number): 0 for number in range(PARTITIONS)})
    while not any(decode(record).msgid == msgid for record in await reader.read()):
        pass
    await reader.close()
