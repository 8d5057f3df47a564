"""Simulator of FCM over TLS and HTTP/2: it grants access tokens, validates, answers, and knows what phones show."""

import asyncio
import functools
import re
from collections import Counter, deque
from collections.abc import Mapping

import msgspec

from protos.registry.v1.apps_pb2 import CHANNEL_FCM
from services.domain.channel_credentials.fcm import AccountSource, ServiceAccount
from services.domain.channel_credentials.stored import credentials_of
from services.fcm_simulator.accounts import FcmGrantError, ServiceAccounts, new_account
from services.fcm_simulator.requests import (
    NOT_A_TOKEN,
    AndroidNotification,
    FcmRefusedError,
    ReceivedMessage,
    project_in_path,
    validate,
)
from services.process.clock import Clock
from services.push_simulator.certificates import SelfSigned
from services.push_simulator.connection import ACCEPTING_FAULTS, ConnectionBehaviour, Fault, HttpRequest, ScriptedReply
from services.push_simulator.server import SimulatedService

RECEIVED_HISTORY = 10_000
"""Messages in memory; beyond it the oldest are dropped."""

_SCRIPTED = re.compile(r"(once-)?(?:([1-5][0-9]{2})(?:-([A-Z_]+))?|([a-z_]+)):.*")
_FAULTS = {fault.name.lower(): fault for fault in Fault}
_CANONICAL: Mapping[int, str] = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    429: "RESOURCE_EXHAUSTED",
    500: "INTERNAL",
    503: "UNAVAILABLE",
}
_FCM_CODES = frozenset(
    (
        "INVALID_ARGUMENT",
        "INTERNAL",
        "QUOTA_EXCEEDED",
        "SENDER_ID_MISMATCH",
        "THIRD_PARTY_AUTH_ERROR",
        "UNAVAILABLE",
        "UNREGISTERED",
        "UNSPECIFIED_ERROR",
    )
)
"""The error codes of FCM (google.firebase.fcm.v1.ErrorCode)."""


class FcmSimulator(SimulatedService):
    """Service that simulates FCM and Google's token server on `port` (0: any free port).

    The beginning of a registration token scripts the answers to its messages: `404-UNREGISTERED:x` is answered 404 with
    this error code of FCM, `403-PERMISSION_DENIED:x` with Google's canonical code alone, `400-TOKEN:x` as a token that
    is none, `cut:x` by the fault CUT of the connections; with `once-` before it only the first one. `retry_after` is
    the header of that name in refusals with 429 and 503.
    """

    name = "fcm-simulator"

    def __init__(
        self,
        clock: Clock,
        host: str = "127.0.0.1",
        port: int = 0,
        behaviour: ConnectionBehaviour | None = None,
        certificate: SelfSigned | None = None,
    ) -> None:
        super().__init__(host, port, certificate)
        self.behaviour = behaviour or ConnectionBehaviour(first_streams=100, streams=100, kept_bytes=65_536)
        self.accounts = ServiceAccounts()
        self.received: deque[ReceivedMessage] = deque(maxlen=RECEIVED_HISTORY)
        self.requests = 0
        self.refused: Counter[str] = Counter()
        self.retry_after: str | None = None
        self._accepted = 0
        self._once: set[str] = set()
        self._clock = clock
        self._changed = asyncio.Event()

    async def wait_for(self, count: int) -> None:
        """Return once `count` messages were accepted since the start; no time-out."""
        while self._accepted < count:
            await self._changed.wait()

    def shown(self, address: str) -> dict[str, AndroidNotification]:
        """Return what the phone with this address shows by itself: the latest notification of each tag."""
        return {
            notification.tag or str(number): notification
            for number, received in enumerate(self.received)
            if received.address == address and received.message.android and not received.is_dry
            if (notification := received.message.android.notification)
        }

    def reply_to(self, request: HttpRequest) -> ScriptedReply:
        headers = dict(request.headers)
        if headers.get(":path") == "/token" and headers.get(":method") == "POST":
            return self._grant(request)
        self.requests += 1
        authenticated = False
        try:
            project_id = project_in_path(headers)
            self._authenticate(headers, project_id)
            authenticated = True
            message = validate(project_id, bytes(request.body))
            fault = self._scripted_fault(message.address)
        except FcmRefusedError as refused:
            self.refused[str(refused)] += 1
            return self._refusal(refused, authenticated=authenticated)
        if fault in ACCEPTING_FAULTS:
            self._accept(message)
        number = "fake_message_id" if message.is_dry else f"0:{self._clock.now_ms() * 1000}%{self._accepted:016x}"
        body = msgspec.json.encode({"name": f"projects/{project_id}/messages/{number}"})
        return _json(200, body, fault)

    def _authenticate(self, headers: Mapping[str, str], project_id: str) -> None:
        own = self.accounts.project_of(headers.get("authorization"), self._clock.now_ms())
        if own is None:
            raise FcmRefusedError(
                401, "UNAUTHENTICATED", "Request had invalid authentication credentials. Expected OAuth 2 access token."
            )
        if own == project_id:
            return
        if project_id not in self.accounts.projects:
            raise FcmRefusedError(404, "NOT_FOUND", "Requested entity was not found.")
        raise FcmRefusedError(
            403,
            "PERMISSION_DENIED",
            "Permission 'cloudmessaging.messages.create' denied on resource"
            f" '//cloudresourcemanager.googleapis.com/projects/{project_id}' (or it may not exist).",
        )

    def _scripted_fault(self, address: str) -> Fault | None:
        """Return the fault that the address selects, if any. RefusedError: it selects a refusal."""
        found = _SCRIPTED.fullmatch(address)
        if found is None or (found[1] and address in self._once):
            return None
        self._once.add(address)
        if found[2] is None:
            return _FAULTS.get(found[4])
        http, code = int(found[2]), found[3] or ""
        if code == "TOKEN":
            raise FcmRefusedError(400, "INVALID_ARGUMENT", NOT_A_TOKEN, "INVALID_ARGUMENT", "message.token")
        canonical = _CANONICAL.get(http, "UNKNOWN")
        is_of_fcm = code in _FCM_CODES
        raise FcmRefusedError(
            http, canonical if is_of_fcm or not code else code, "Scripted.", code if is_of_fcm else ""
        )

    def _refusal(self, refused: FcmRefusedError, *, authenticated: bool) -> ScriptedReply:
        reply = _json(refused.http, refused.body())
        if self.retry_after is not None and refused.http in (429, 503):
            reply.headers.append(("retry-after", self.retry_after))
        return reply._replace(authenticated=authenticated)

    def _grant(self, request: HttpRequest) -> ScriptedReply:
        try:
            return _json(200, msgspec.json.encode(self.accounts.grant(bytes(request.body), self._clock.now_ms())))
        except FcmGrantError as refused:
            self.refused[refused.error] += 1
            body = {"error": refused.error, "error_description": refused.description}
            return _json(400, msgspec.json.encode(body))

    def _accept(self, message: ReceivedMessage) -> None:
        self.received.append(message)
        self._accepted += 1
        self._changed.set()
        self._changed = asyncio.Event()


def simulated_accounts(simulator: FcmSimulator) -> AccountSource:
    """Return one account of the simulator for all apps that have one; it is made when it is first needed."""

    @functools.cache
    def account() -> ServiceAccount:
        made = new_account("simulator")
        simulator.accounts.register(made)
        return made

    return lambda app: account() if credentials_of(app, CHANNEL_FCM) else None


def _json(status: int, body: bytes, fault: Fault | None = None) -> ScriptedReply:
    return ScriptedReply([(":status", str(status)), ("content-type", "application/json; charset=UTF-8")], body, fault)
