"""The actions of the demo's people at the console: compose, approve, reject, look up, pause, invite."""

import contextlib
import re
from collections.abc import Mapping

from demo.content import Text
from demo.organisation import TEAMS, Installed
from demo.person import ConsoleSession
from services.errors import CarillonError

_DIGEST = re.compile(r'name="digest" value="([0-9a-f]+)"')
_NEW = {
    "is_notif": "1",
    "click_action": "1",
    "removable": "1",
    "audience": "filter",
    "when": "now",
    "period": "24",
    "period_unit": "h",
}
"""The default values of the form in which a push is composed."""


class People:
    """The people of the teams, each with a session of their own."""

    def __init__(self, url: str, installed: Installed) -> None:
        self._url = url
        self._installed = installed
        self._persons: dict[str, ConsoleSession] = {}

    async def log_in(self, admin: ConsoleSession) -> None:
        """Log everybody in; one of them mistypes the password first."""
        self._persons[admin.login] = admin
        await admin.log_in()
        for member in (member for team in TEAMS for member in team.people):
            person = self._persons[member.login] = ConsoleSession(self._url, member.login)
            if member.login == "tom.baker":
                await person.open("/log-in")
                with contextlib.suppress(CarillonError):
                    await person.submit("/log-in", login=member.login, password="not this one")
            await person.log_in()

    def person(self, login: str) -> ConsoleSession:
        return self._persons[login]

    async def send(self, login: str, app: str, text: Text, **fields: str) -> str:
        """Compose a notification, look at it and send it; return the path of the page that follows."""
        person, path = self._persons[login], f"/apps/{self._installed.appkeys[app]}/send"
        click = {"click_action": "2", "url": text.url} if text.url else {}
        await person.open(path)
        await person.submit(path, **{**_NEW, "title": text.title, "content": text.content, **click, **fields})
        hidden = person.hidden()
        return await person.submit(f"{path}/now", **hidden, typed=hidden["devices"])

    async def send_to_test_device(self, login: str, app: str, text: Text, alias: str) -> None:
        """Name a test device of the app and send a push to it first."""
        person, path = self._persons[login], f"/apps/{self._installed.appkeys[app]}"
        await person.open(f"{path}/test-devices")
        await person.submit(f"{path}/test-devices", device=alias, label=f"{alias}'s phone")
        await person.submit(f"{path}/send", **{**_NEW, "title": text.title, "content": text.content, "stag": "deals"})
        hidden = person.hidden()
        await person.submit(f"{path}/send/test", body=hidden["body"], key=hidden["key"])

    async def approve(self, login: str, draft: str) -> None:
        person = self._persons[login]
        await person.open(draft)
        digest = _DIGEST.search(person.page)
        if digest is None:
            raise CarillonError(f"{login} cannot approve {draft}: its page has no form for it")
        await person.submit(f"{draft}/approval", digest=digest[1])

    async def decide(self, login: str, draft: str, decision: str, **fields: str) -> None:
        """Reject a draft or withdraw it, by the last part of the form's path."""
        await self._persons[login].open(draft)
        await self._persons[login].submit(f"{draft}/{decision}", **fields)

    async def pause(self, login: str, app: str, change: str, reason: str) -> None:
        path = f"/apps/{self._installed.appkeys[app]}"
        await self._persons[login].open(path)
        await self._persons[login].submit(f"{path}/pause", change=change, reason=reason)

    async def rotate_secret(self, login: str, app: str) -> None:
        """Make another secret key, which the app server uses from now on."""
        person, path = self._persons[login], f"/apps/{self._installed.appkeys[app]}/secret"
        await person.open(path)
        await person.submit(path, keep_old="24h", **person.hidden())
        self._installed.secrets[app] = person.shown_once()

    async def look(self, login: str, *paths: str) -> None:
        for path in paths:
            await self._persons[login].open(path)

    async def submit(self, login: str, page: str, form: str, fields: Mapping[str, str]) -> str:
        await self._persons[login].open(page)
        return await self._persons[login].submit(form, **fields)

    async def close(self) -> None:
        for person in self._persons.values():
            await person.close()
