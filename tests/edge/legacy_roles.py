"""The legacy interfaces with registry, targeting, scheduling and delivery roles behind them."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import services.delivery.main
import services.delivery.settings
from protos.registry.v1.apps_pb2 import PLATFORM_IOS, App
from testkit.edge.legacy_client import LegacyClient
from testkit.edge.role import BACKENDS, EdgeInstallation, edge_installation


@pytest.fixture
async def installation(tmp_path: Path) -> AsyncIterator[EdgeInstallation]:
    delivery = (services.delivery.settings.DeliverySettings, services.delivery.main.build)
    async with edge_installation(tmp_path, {**BACKENDS, "delivery": delivery}) as installation:
        yield installation


@pytest.fixture
def legacy(installation: EdgeInstallation) -> LegacyClient:
    return LegacyClient(installation)


@pytest.fixture
async def android_app(installation: EdgeInstallation) -> App:
    return await installation.app()


@pytest.fixture
async def ios_app(installation: EdgeInstallation) -> App:
    return await installation.app(PLATFORM_IOS)
