"""A console whose people log in with a real OpenID Connect provider, and a browser that visits both."""

import json
import re
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager
from html import unescape
from pathlib import Path
from typing import Any
from urllib.parse import urljoin

import httpx
import pytest

from protos.accounts.v1.service_pb2 import ListUsersRequest, UserSummary
from services.domain.topics import TOPICS, decode
from services.log.port import Partition
from services.process.clock import ManualClock
from testkit.faults.crashing_log import records_of
from testkit.oidc.running import SECRET, RunningProvider, running_provider
from testkit.plain_http import async_client
from tests.console.conftest import Browser, ConsoleInstallation, running_console

URL = "http://console"
CHECK_S = 240
OUTAGE_S = 600
ROLES = {
    "push-admins": {"administrator": True},
    "news-desk": {"teams": {"News": "sender", "Sport": "viewer"}},
    "news-heads": {"teams": {"News": "approver"}},
}

StartConsole = Callable[..., AbstractAsyncContextManager[ConsoleInstallation]]


@pytest.fixture(scope="module")
def provider() -> Iterator[RunningProvider]:
    with running_provider(URL) as provider:
        yield provider


@pytest.fixture
def start_console(tmp_path: Path, provider: RunningProvider) -> StartConsole:
    """Starts a console that knows the provider; more settings are given by name without `oidc_`."""
    (tmp_path / "roles.json").write_text(json.dumps(ROLES))
    (tmp_path / "secret").write_text(f"{SECRET}\n")

    def start(**more: Any) -> AbstractAsyncContextManager[ConsoleInstallation]:
        settings = {
            "issuer": provider.issuer,
            "client_id": "console",
            "client_secret_file": str(tmp_path / "secret"),
            "roles_file": str(tmp_path / "roles.json"),
            "name": "Example",
            "check_s": CHECK_S,
            "outage_s": OUTAGE_S,
            **more,
        }
        given = {f"oidc_{name}": value for name, value in settings.items()}
        return running_console(tmp_path, ManualClock(int(time.time() * 1000)), console_url=URL, **given)

    return start


@pytest.fixture
async def console(start_console: StartConsole) -> AsyncIterator[ConsoleInstallation]:
    async with start_console() as console:
        yield console


class Person:
    """A person with one browser, at the console and at the provider."""

    def __init__(self, console: ConsoleInstallation) -> None:
        self.console: Browser = console.browser()
        self._provider = async_client()

    async def at_provider(self, name: str, path: str = "/log-in/provider", act: str = "log-in") -> str:
        """Go from the console to the provider and log in there; return the path that leads back to the console."""
        answer = await self.console.get(path)
        assert answer.status_code == 303, answer.text
        page = await self._follow(answer.headers["location"])
        if not isinstance(page, str):
            page = await self._send(page, name=name, act=act)
        assert isinstance(page, str), page.text
        return page

    async def log_in(self, name: str, path: str = "/log-in/provider") -> httpx.Response:
        """Log in at the provider; return the console's answer."""
        answer = await self.console.get(await self.at_provider(name, path))
        if answer.status_code == 303:
            await self.console.get("/account")
        return answer

    async def log_out_of_provider(self, url: str) -> str:
        """Confirm the log-out at the provider; return the path that leads back to the console."""
        page = await self._follow(url)
        assert isinstance(page, httpx.Response)
        back = await self._send(page, logout="yes")
        assert isinstance(back, str)
        return back

    async def _send(self, page: httpx.Response, **fields: str) -> httpx.Response | str:
        action = re.search(r'action="([^"]+)"', page.text)
        assert action is not None, page.text
        hidden = dict(re.findall(r'type="hidden" name="(\w+)" value="([^"]*)"', page.text))
        target = urljoin(str(page.url), unescape(action[1]))
        return await self._leads_to(await self._provider.post(target, data={**hidden, **fields}))

    async def _follow(self, url: str) -> httpx.Response | str:
        return await self._leads_to(await self._provider.get(url))

    async def _leads_to(self, answer: httpx.Response) -> httpx.Response | str:
        """Return the page of the provider to which an answer leads, or the path of the console."""
        while answer.is_redirect:
            target = urljoin(str(answer.url), answer.headers["location"])
            if target.startswith(f"{URL}/"):
                return target.removeprefix(URL)
            answer = await self._provider.get(target)
        return answer


async def users(console: ConsoleInstallation) -> dict[str, UserSummary]:
    """Return all users by login name."""
    return {user.login: user for user in (await console.accounts.ListUsers(ListUsersRequest())).users}


async def facts(console: ConsoleInstallation, topic: str) -> list[Any]:
    """Return the facts of a topic of accounts."""
    messages = [decode(record) for record in await records_of(console.log, Partition(topic, 0))]
    oneof = TOPICS[topic].envelope.DESCRIPTOR.oneofs[0].name
    return [message for message in messages if message.WhichOneof(oneof)]
