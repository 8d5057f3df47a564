"""A simulated app server that changes string tags and timed tasks, and reads each change back."""

import asyncio
from collections.abc import Mapping
from random import Random
from typing import Any

import httpx

from testkit.installation.app_server import AppCredentials
from tests.soak.ledger import Ledger
from tests.soak.senders import WRONG_SIGN, Answer, HttpInterface

_TAGS = ("red", "green", "blue")
_RETRY_S = 0.3
_LATER_S = 86_400


class ReadBackClient:
    """Changes tags and tasks, and reads each change through any edge. A wrong read is an error of the ledger.

    No other client changes its device or its tasks. `pace`: how many times longer than usual it waits between
    two changes.
    """

    def __init__(
        self,
        interface: HttpInterface,
        app: AppCredentials,
        token: str,
        ledger: Ledger,
        random: Random,
        pace: float = 1.0,
    ) -> None:
        self._interface = interface
        self._app = app
        self._token = token
        self._ledger = ledger
        self._random = random
        self._pace = pace
        self._tags: set[str] = set()

    def sign_with(self, app: AppCredentials) -> None:
        """Sign with the app's new secret key from now on."""
        self._app = app

    async def run(self, end: asyncio.Event) -> None:
        """Change and read until `end` is set."""
        while not end.is_set():
            await self._random.choice((self._change_tags, self._time_push))()
            await asyncio.sleep(self._pace * self._random.uniform(0.1, 2))

    async def _change_tags(self) -> None:
        tag = self._random.choice(_TAGS)
        method = "DELETE" if tag in self._tags else "POST"
        named = {"appkey": self._app.appkey, "action": "stag"}
        changed = await self._done(method, "/v2/device", {**named, "params": {self._token: [tag]}})
        self._expect("result of a tag", changed["result"], 0)
        self._tags ^= {tag}
        read = await self._done("POST", "/v2/deviceinfo", {**named, "params": [self._token]})
        self._expect("string tags", sorted(read["detailsinfo"][0]["infolist"]), sorted(self._tags))

    async def read_through(self, interface: HttpInterface) -> None:
        """Read the tags once through this interface. An error or a wrong answer is an error of the ledger."""
        body = {"appkey": self._app.appkey, "action": "stag", "params": [self._token]}
        try:
            read = await interface.call("POST", "/v2/deviceinfo", body, self._app.secret_key, statuses=(200, 403, 503))
        except httpx.TransportError as error:
            self._ledger.errors.append(f"an edge did not answer though nothing was broken: {error!r}")
            return
        tags = sorted(read["detailsinfo"][0]["infolist"]) if read["result"] == 0 else read
        self._expect("string tags in the end", tags, sorted(self._tags))
        self._ledger.write("asked an edge", tags=tags)

    async def _time_push(self) -> None:
        """Time a push for tomorrow, and cancel it."""
        appkey = {"android": self._app.appkey}
        body = {
            "sendTo": {"appkey": appkey, "userScope": 1},
            "msgStyle": {"basic": {"content": "tomorrow", "is_notif": 0}},
            "option": {"timed": 2, "send_time_interval": _LATER_S},
        }
        created = await self._done("POST", "/v2/push", body)
        named = {"appkey": appkey, "task_key": created["task_key"]}
        self._expect("status of a task", await self._status(named), "unsend")
        cancelled = await self._done("DELETE", "/v2/timed", named)
        self._ledger.write("task cancelled", task=created["task_key"], result=cancelled["result"])
        self._expect("status of a cancelled task", await self._status(named), "cancel")

    async def _status(self, named: Mapping[str, Any]) -> str:
        read = await self._done("POST", "/v2/timedtaskdetail", named)
        return str(read["data"][0]["Status"]) if read["result"] == 0 else f"result {read['result']}: {read['desc']}"

    def _expect(self, what: str, read: object, written: object) -> None:
        if read != written:
            self._ledger.errors.append(f"{what} was read as {read} after it was written as {written}")

    async def _done(self, method: str, path: str, body: Mapping[str, Any]) -> Answer:
        """Send a request, and repeat it until the service has answered it or refused it."""
        while True:
            answer: Answer = {"result": 503}
            try:
                answer = await self._interface.call(method, path, body, self._app.secret_key, statuses=(200, 403, 503))
            except httpx.TransportError as error:
                self._ledger.write("no answer", path=path, error=repr(error))
            if answer["result"] in (0, 400, 401) and answer.get("desc") != WRONG_SIGN:
                return answer
            await asyncio.sleep(_RETRY_S)
