"""Simulator of Xiaomi's push service: it validates, answers, and knows what phones show."""

import hmac
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from services.process.clock import Clock
from services.push_simulator.certificates import SelfSigned
from services.push_simulator.http1 import SimulatorReply
from services.push_simulator.http1_service import Http1SimulatedService, PushRefusedError, ReceivedRequest, json_reply
from services.xiaomi_simulator.requests import (
    NOT_AUTHENTICATED,
    WRONG_PACKAGE,
    XiaomiForm,
    XiaomiMessage,
    validate,
)

_SEND_PATH = "/v3/message/regid"


@dataclass(frozen=True, slots=True)
class XiaomiApp:
    """An app in Xiaomi's console: its package, and the AppSecret that may send to it."""

    package: str
    secret: str = field(repr=False)


class XiaomiSimulator(Http1SimulatedService[XiaomiMessage]):
    """Xiaomi's call. `-1:x` is answered with this code, and so are codes of one, two, four, five and six digits.

    Three digits are a status of HTTP.
    """

    name = "xiaomi-simulator"
    codes = re.compile("-1|[1-9][0-9]?|[1-9][0-9]{3,5}")

    def __init__(
        self, clock: Clock, host: str = "127.0.0.1", port: int = 0, certificate: SelfSigned | None = None
    ) -> None:
        super().__init__(host, port, certificate)
        self._clock = clock
        self._apps: dict[str, XiaomiApp] = {}

    def register(self, app: XiaomiApp) -> None:
        """Accept requests for the app's package by its secret."""
        self._apps[app.package] = app

    def delete(self, package: str) -> None:
        """Accept no request for the package any more."""
        del self._apps[package]

    def shown(self, address: str) -> dict[int | str, XiaomiForm]:
        """Return what the phone with this registration id shows by itself.

        Of one jobkey that is the first notification alone; of one notify_id the latest.
        """
        shown: dict[int | str, XiaomiForm] = {}
        jobkeys: set[str] = set()
        for number, received in enumerate(self.received):
            form = received.message.form
            if received.token != address or form.pass_through == 1 or form.jobkey in jobkeys:
                continue
            if form.jobkey is not msgspec.UNSET:
                jobkeys.add(form.jobkey)
            shown[f"without {number}" if form.notify_id is msgspec.UNSET else form.notify_id] = form
        return shown

    def reply_to(self, fields: list[tuple[str, str]], body: bytes) -> SimulatorReply:
        if dict(fields)[":path"] != _SEND_PATH:
            return SimulatorReply(404, [])
        return super().reply_to(fields, body)

    def judge(self, headers: Mapping[str, str], body: bytes) -> ReceivedRequest[XiaomiMessage]:
        authorization = headers.get("authorization", "")
        packages = {app.package for app in self._apps.values() if _is_by(authorization, app)}
        if not packages:
            raise PushRefusedError(NOT_AUTHENTICATED, "the secret is that of no app")
        request = validate(headers, body)
        if request.message.form.restricted_package_name not in packages:
            raise PushRefusedError(WRONG_PACKAGE, "the package is not that of the app")
        return request

    def answer(self, valid: Sequence[str], refused: Mapping[str, str]) -> SimulatorReply:
        data = {"id": f"sdm{self.requests:08d}{self._clock.now_ms()}"}
        return json_reply(200, msgspec.json.encode({**self._told("ok", "0"), "description": "success", "data": data}))

    def refusal(self, refused: PushRefusedError) -> SimulatorReply:
        told = {**self._told("error", refused.code), "description": refused.message, "reason": refused.message}
        return json_reply(200, msgspec.json.encode(told))

    def _told(self, result: str, code: str) -> dict[str, object]:
        return {"result": result, "code": int(code), "trace_id": f"simulated-{self.requests}"}


def _is_by(authorization: str, app: XiaomiApp) -> bool:
    return hmac.compare_digest(authorization.encode(), f"key={app.secret}".encode())
