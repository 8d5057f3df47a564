"""A running edge with registry, targeting and scheduling roles behind it."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from testkit.edge.role import BACKENDS, EdgeInstallation, edge_installation


@pytest.fixture
async def installation(tmp_path: Path) -> AsyncIterator[EdgeInstallation]:
    async with edge_installation(tmp_path, BACKENDS) as installation:
        yield installation
