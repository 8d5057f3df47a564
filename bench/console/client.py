"""An HTTP client of the console: it logs in, submits forms and opens pages, as a person's browser does."""

import re
from collections.abc import Mapping
from html import unescape

import httpx

from console.overview.streams import LivePage
from console.routes import ROUTES

PASSWORD = "correct horse battery"
_CSRF = re.compile(r'name="csrf" value="([^"]+)"')
_HIDDEN = re.compile(r'<input type="hidden" name="(body|key|devices)" value="([^"]*)">')
_NO_PAGES = ("/statistics.csv", "/audit.csv", "/apps/{appkey}/sent/{msgid}")
_KINDS = ("connections", "broadcasts", "users", "logins")
_SEND = {"is_notif": "1", "click_action": "1", "audience": "everyone", "when": "now", "content": "To all"}


class ConsoleClient:
    """A client with the session of an administrator of the installation."""

    def __init__(self, url: str, cookie: str = "") -> None:
        headers = {"Accept-Encoding": "gzip", **({"Cookie": cookie} if cookie else {})}
        self.http = httpx.AsyncClient(base_url=url, headers=headers, timeout=120)
        self._csrf = ""

    @property
    def cookie(self) -> str:
        return "; ".join(f"{name}={value}" for name, value in self.http.cookies.items())

    async def get(self, path: str) -> httpx.Response:
        return self._noted(await self.http.get(path))

    async def follow(self, path: str) -> None:
        """Read the events of a live page's stream until it ends."""
        async with self.http.stream("GET", path, headers={"Accept": "text/event-stream"}) as answer:
            answer.raise_for_status()
            async for _ in answer.aiter_bytes():
                pass

    async def post(self, path: str, fields: Mapping[str, str]) -> httpx.Response:
        answer = self._noted(await self.http.post(path, data={**fields, "csrf": self._csrf}))
        assert answer.status_code in (200, 303), (path, answer.status_code, answer.text)
        return answer

    async def use_link(self, token: str) -> None:
        """Choose the password with a one-time token; that logs in."""
        await self.get(f"/link?token={token}")
        await self.post("/link", {"token": token, "password": PASSWORD, "repeated": PASSWORD})
        await self.get("/account")

    async def log_in(self, login: str) -> None:
        await self.get("/log-in")
        await self.post("/log-in", {"login": login, "password": PASSWORD})
        await self.get("/account")

    async def give_to_team(self, appkey: str) -> str:
        """Make a team that wants broadcasts approved, and give it the app; return the team's id."""
        made = await self.post("/teams/new", {"name": "News"})
        path = made.headers["location"]
        await self.post(f"{path}/apps", {"appkey": appkey, "change": "give"})
        await self.post(f"{path}/settings", {"name": "News", "broadcasts": "on"})
        return str(path.split("/")[2])

    async def review(self, appkey: str) -> httpx.Response:
        """Compose a push to all devices; return the page that shows what would be sent."""
        return await self.post(f"/apps/{appkey}/send", _SEND)

    async def submit(self, appkey: str) -> str:
        """Submit a push to all devices for approval; return the id of its draft."""
        hidden = {name: unescape(value) for name, value in _HIDDEN.findall((await self.review(appkey)).text)}
        sent = await self.post(f"/apps/{appkey}/send/now", {**hidden, "typed": hidden["devices"]})
        return str(sent.headers["location"].split("/")[3])

    def _noted(self, answer: httpx.Response) -> httpx.Response:
        found = _CSRF.search(answer.text)
        self._csrf = found[1] if found else self._csrf
        return answer


def pages(names: Mapping[str, str]) -> dict[str, str]:
    """Return the path of each page that a person opens with a link, by its template.

    `names`: appkey, msgid, token, team_id, draft_id and user_id.
    """
    queries = {
        "/apps/{appkey}/device": [f"name={names['token']}"],
        "/apps/{appkey}/why": [f"name={names['token']}", f"name={names['token']}&push={names['msgid']}"],
        "/statistics": [f"kind={kind}&appkey={names['appkey']}" for kind in _KINDS],
        "/audit": ["", "subject=data"],
    }
    return {
        f"{template}{'?' if query else ''}{_short(query, names)}": template.format(**names) + (query and f"?{query}")
        for template, route in ROUTES.items()
        if route.get is not None and not route.get.is_public and template not in _NO_PAGES
        if not issubclass(route.page, LivePage)
        for query in queries.get(template, [""])
    }


def live_pages(names: Mapping[str, str]) -> list[str]:
    """Return the path of each page with live parts: its template followed by /live is the route of a stream."""
    streams = [template for template, route in ROUTES.items() if issubclass(route.page, LivePage)]
    return [template.removesuffix("/live").format(**names) or "/" for template in streams]


def _short(query: str, names: Mapping[str, str]) -> str:
    for name, value in names.items():
        query = query.replace(value, f"{{{name}}}")
    return query
