"""The operator's commands against a running registry."""

from collections.abc import AsyncIterator

import pytest

from services.net.rpc.caller import UserSocket
from services.net.rpc.server import RpcListener, serve
from testkit.services import running_services
from tests.services.registry.apps.command import Carillon, Outcome, run
from tests.services.registry.conftest import RunningRegistry


@pytest.fixture
async def carillon(registry: RunningRegistry) -> AsyncIterator[Carillon]:
    """Return a function that runs `carillon app` with its arguments."""
    user_socket = UserSocket("commands", registry.settings.data / "carillon.sock")
    server = serve([f"unix:{user_socket.inner}"], users=user_socket.users)
    for add in registry.role.servicers:
        add(server)

    async def call(*arguments: str, group: str = "app") -> Outcome:
        return await run(registry.settings.data_dir, *arguments, group=group)

    async with running_services([RpcListener("calls", server), user_socket]):
        yield call
    user_socket.close()
