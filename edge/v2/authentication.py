"""Authentication of v2 requests: read the body, find the apps that it names, verify its sign."""

from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeVar

from falcon.asgi import Request

from edge.core.admission import Admission
from edge.core.origins import Origins
from edge.core.parsing import canonical
from edge.core.parsing.body import read_body
from edge.core.parsing.canonical import SignedRequest
from edge.core.signature import SignatureVerifier, Signers
from edge.core.turns import RequestTurns
from protos.runtime.v1.log_pb2 import Origin


class Apps(Protocol):
    """The apps that a request names."""

    @property
    def accepted(self) -> tuple[Signers, ...]: ...

    @property
    def appkeys(self) -> list[str]: ...


Named = TypeVar("Named", bound=Apps)


class Authenticator:
    """Authenticates requests signed with the secrets of the apps that they name."""

    def __init__(
        self, signatures: SignatureVerifier, admission: Admission, origins: Origins, turns: RequestTurns
    ) -> None:
        self._signatures = signatures
        self._admission = admission
        self._origins = origins
        self._turns = turns

    async def authenticate(
        self, request: Request, apps_of: Callable[[Mapping[str, Any]], Named]
    ) -> tuple[SignedRequest, Named, Origin]:
        """Read and verify a request, and wait for its turn; `apps_of` finds the apps in its fields.

        InputError: the body or the apps are wrong. SignError: the sign is wrong. Other errors as for Admission.admit.
        """
        raw = await read_body(request)
        origin = self._origins.of(request)
        signed = await self._turns.parse(origin.address, raw)
        apps = apps_of(signed.fields)
        signed_by_old = await self._signatures.verify(signed.text, signed.sign, apps.accepted)
        canonical.check_texts(signed)
        self._admission.admit(apps.appkeys, origin, signed_by_old)
        await self._turns.enter(request, apps.appkeys[0], len(raw))
        return signed, apps, origin
