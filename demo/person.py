"""A person at the console: opens pages and submits their forms, as a browser does."""

import asyncio
import html
import re

import httpx

from demo.moved_clock import NOT_KEPT
from services.errors import CarillonError, UnavailableError

PASSWORD = "bells over the harbour"
"""The password of everybody in the demo; the service listens on 127.0.0.1 only."""

_LOG_INS = 5
_RETRY_S = 1.0
_CSRF = re.compile(r'name="csrf" value="([^"]*)"')
_SHOWN_ONCE = re.compile(r'data-copy="([^"]*)"')
_PROBLEM = re.compile(r'role="alert"[^>]*>(.*?)</div>', re.DOTALL)
_HIDDEN = re.compile(r'<input type="hidden" name="(body|key|devices|replaces)" value="([^"]*)"')


class ConsoleSession:
    """A session in the console."""

    def __init__(self, url: str, login: str) -> None:
        self.login = login
        self._http = httpx.AsyncClient(
            base_url=url, trust_env=False, timeout=60, follow_redirects=True, headers=NOT_KEPT
        )
        self._csrf = ""
        self.page = ""

    async def close(self) -> None:
        await self._http.aclose()

    async def use_link(self, path: str) -> None:
        """Choose the password with a one-time link, which logs in too."""
        await self.open(path)
        token = path.partition("token=")[2]
        await self.submit("/link", token=token, login=self.login, password=PASSWORD, repeated=PASSWORD)

    async def log_in(self) -> None:
        """Log in; on a busy machine, where the check of a password takes long, more than once."""
        for _ in range(_LOG_INS):
            await self.open("/log-in")
            try:
                await self.submit("/log-in", login=self.login, password=PASSWORD)
            except UnavailableError:
                await asyncio.sleep(_RETRY_S)
            else:
                return
        raise CarillonError(f"the service does not let {self.login} log in")

    async def open(self, path: str) -> str:
        """Open a page; return its path after redirections. CarillonError: it is not shown."""
        return self._shown(await self._http.get(path))

    async def submit(self, path: str, **fields: str) -> str:
        """Submit a form; return the path of the page that follows. CarillonError: the form is refused."""
        return self._shown(await self._http.post(path, data={**fields, "csrf": self._csrf}))

    def shown_once(self) -> str:
        """Return the secret, token or link that the page shows this time only."""
        found = _SHOWN_ONCE.search(self.page)
        if found is None:
            raise CarillonError("the page shows no link or secret to copy")
        return html.unescape(found[1])

    def hidden(self) -> dict[str, str]:
        """Return the hidden fields of the form that sends a reviewed push, or of that which makes a secret key."""
        return {name: html.unescape(value) for name, value in _HIDDEN.findall(self.page)}

    def _shown(self, response: httpx.Response) -> str:
        self.page = response.text
        if found := _CSRF.search(self.page):
            self._csrf = found[1]
        if response.status_code == 503:
            raise UnavailableError(f"{response.request.method} {response.url.path}: HTTP 503")
        if response.status_code != 200:
            problem = _PROBLEM.search(self.page)
            words = html.unescape(problem[1].strip()) if problem else f"HTTP {response.status_code}"
            raise CarillonError(f"{self.login} at {response.request.method} {response.url.path}: {words}")
        return response.url.path
