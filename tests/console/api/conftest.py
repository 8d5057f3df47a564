"""API tokens for the tests of `/console/v1`."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest

from protos.accounts.v1.accounts_pb2 import MemberRole
from protos.accounts.v1.service_pb2 import CreateTokenRequest
from tests.console.conftest import OPERATOR, ConsoleInstallation

PREFIX = "/console/v1"


class Program:
    """Makes calls with an API token, or with none."""

    def __init__(self, application: Any, text: str) -> None:
        transport = httpx.ASGITransport(application, raise_app_exceptions=False, client=("192.0.2.9", 5000))
        headers = {"Authorization": f"Bearer {text}"} if text else {}
        self.http = httpx.AsyncClient(transport=transport, base_url="http://console", headers=headers)

    async def get(self, path: str, **query: str | int) -> httpx.Response:
        return await self.http.get(PREFIX + path, params=query or None)

    async def post(self, path: str, body: Any = None, **headers: str) -> httpx.Response:
        found = {name.replace("_", "-"): value for name, value in headers.items()}
        return await self.http.post(PREFIX + path, json={} if body is None else body, headers=found)


@dataclass
class Programs:
    """Makes API tokens of teams, and programs that use them."""

    console: ConsoleInstallation
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    async def token(self, team_id: str, role: str, expires_in_s: int = 0) -> tuple[str, str]:
        """Return the id and the text of a new API token."""
        number = MemberRole.Value(f"MEMBER_ROLE_{role.upper()}")
        asked = CreateTokenRequest(
            team_id=team_id,
            name=f"{role} {next(self._numbers)}",
            role=number,
            expires_in_s=expires_in_s,
            origin=OPERATOR,
        )
        made = await self.console.accounts.CreateToken(asked)
        return made.token.token_id, made.text

    async def program(self, team_id: str, role: str) -> Program:
        return self.of_text((await self.token(team_id, role))[1])

    def of_text(self, text: str) -> Program:
        return Program(self.console.application, text)


@pytest.fixture
def programs(console: ConsoleInstallation) -> Programs:
    return Programs(console)
