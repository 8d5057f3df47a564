"""The legacy doors with real registry, targeting, scheduling and delivery roles behind them, called over HTTP."""

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest

import services.delivery.main
import services.delivery.settings
from protos.registry.v1.apps_pb2 import PLATFORM_IOS, App
from services.runtime.log.port import Log, NewRecord, Partition, Reader, Record
from testkit.signing import signed
from tests.roles.edge.conftest import BACKENDS, Installation, opened

Answer = dict[str, Any]


class Doors:
    """An app server's calls. Bodies get the appkey and the sign unless they bring their own."""

    def __init__(self, installation: Installation) -> None:
        self.installation = installation

    async def android(self, app: App, path: str = "/push", method: str = "POST", /, **body: Any) -> Answer:
        return await self._call(self.installation.android, app, method, path, body)

    async def ios(self, app: App, path: str = "/push", method: str = "POST", /, **body: Any) -> Answer:
        return await self._call(self.installation.ios, app, method, path, body)

    async def _call(
        self, http: httpx.AsyncClient, app: App, method: str, path: str, body: dict[str, Any]
    ) -> dict[str, Any]:
        content = signed({"appkey": app.appkey, **body}, self.installation.secrets[app.appkey])
        return await self.raw(http, method, path, content)

    @staticmethod
    async def raw(http: httpx.AsyncClient, method: str, path: str, content: bytes) -> Answer:
        response = await http.request(method, path, content=content)
        assert response.status_code == 200, response.text
        assert response.headers["content-type"] == "application/json;charset=utf-8"
        answer: Answer = response.json()
        return answer


class SlowLog:
    """A log that shows its readers nothing until `shown`."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self.topics = log.topics
        self.asked = asyncio.Event()
        self.shown = asyncio.Event()

    async def append(self, new_records: Sequence[NewRecord]) -> list[int]:
        return await self._log.append(new_records)

    async def open(self, starts: Mapping[Partition, int]) -> Reader:
        return SlowReader(self, await self._log.open(starts))

    async def ends(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        return await self._log.ends(partitions)

    async def last(self, partition: Partition) -> Record | None:
        return await self._log.last(partition)

    async def close(self) -> None:
        await self._log.close()


class SlowReader:
    def __init__(self, log: SlowLog, reader: Reader) -> None:
        self._log = log
        self._reader = reader

    async def read(self, max_records: int = 5000) -> list[Record]:
        self._log.asked.set()
        await self._log.shown.wait()
        return await self._reader.read(max_records)

    async def close(self) -> None:
        await self._reader.close()


@pytest.fixture
async def installation(tmp_path: Path) -> AsyncIterator[Installation]:
    delivery = (services.delivery.settings.DeliverySettings, services.delivery.main.build)
    async with opened(tmp_path, {**BACKENDS, "delivery": delivery}) as installation:
        yield installation


@pytest.fixture
def doors(installation: Installation) -> Doors:
    return Doors(installation)


@pytest.fixture
async def android_app(installation: Installation) -> App:
    return await installation.app()


@pytest.fixture
async def ios_app(installation: Installation) -> App:
    return await installation.app(PLATFORM_IOS)
