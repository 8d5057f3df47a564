"""Authentication of requests that name one app, `appkey`, at the top of the body (the legacy interfaces)."""

from typing import NamedTuple

from falcon.asgi import Request

from edge.core.admission import Admission
from edge.core.origins import Origins
from edge.core.parsing import canonical
from edge.core.parsing.body import read_body
from edge.core.signature import AppRef, SignatureVerifier
from edge.core.turns import RequestTurns
from protos.registry.v1.apps_pb2 import App, Platform
from protos.runtime.v1.log_pb2 import Origin
from services.domain.apps import AppDirectory
from services.runtime.errors import InputError, SignError


class AuthenticatedRequest(NamedTuple):
    """A request signed by its app. `raw` is the body, `text` its canonical text."""

    raw: bytes
    text: str
    app: App
    origin: Origin

    @property
    def ref(self) -> AppRef:
        return AppRef(self.app.appkey, self.app.platform)


class AppAuthenticator:
    """Authenticates requests signed by an app of the interface's platform."""

    def __init__(
        self,
        platform: "Platform.ValueType",
        apps: AppDirectory,
        signatures: SignatureVerifier,
        admission: Admission,
        origins: Origins,
        turns: RequestTurns,
    ) -> None:
        self._platform = platform
        self._apps = apps
        self._signatures = signatures
        self._admission = admission
        self._origins = origins
        self._turns = turns

    async def authenticate(self, request: Request) -> AuthenticatedRequest:
        """Read and verify a request, and wait for its turn.

        InputError: the body is no signed request, or has a text with NUL. SignError: wrong sign, or no such app of this
        platform. Other errors as for Admission.admit.
        """
        raw = await read_body(request)
        origin = self._origins.of(request)
        signed = await self._turns.parse(origin.address, raw)
        given = signed.fields.get("appkey")
        if given is None:
            raise InputError("appkey is missing")
        appkey = canonical.number_or_text(given)
        if appkey is None:
            raise InputError("appkey must be a string")
        signed_by_old = await self._signatures.verify(signed.text, signed.sign, [(AppRef(appkey, self._platform),)])
        canonical.check_texts(signed)
        app = self._apps.get(appkey)
        if app is None:
            raise SignError("sign not correct")
        self._admission.admit([appkey], origin, signed_by_old)
        await self._turns.enter(request, appkey, len(raw))
        return AuthenticatedRequest(signed.raw, signed.text, app, origin)
