"""Fixture: servicers behind a channel in the process, and behind one over a socket."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from services.net.rpc.local import LocalServer
from tests.services.net.rpc.servicers import OverASocket, ServicersOnChannel


@pytest.fixture(params=["in the process", "over a socket"])
async def servicers(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[ServicersOnChannel]:
    servicers = ServicersOnChannel()
    if request.param == "in the process":
        local = LocalServer()
        servicers.add_to(local)
        servicers.channel = local.channel()
        yield servicers
        return
    async with OverASocket(servicers, tmp_path):
        yield servicers
