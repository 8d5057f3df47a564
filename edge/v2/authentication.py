"""What every endpoint of the v2 door does first: read the body, see which apps it names, check its sign."""

from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeVar

from falcon.asgi import Request

from edge.core.origins import Origins
from edge.core.parsing import canonical
from edge.core.parsing.body import read_body
from edge.core.parsing.canonical import SignedRequest
from edge.core.signature import Gate, Signers
from protos.runtime.v1.log_pb2 import Origin


class Apps(Protocol):
    """The apps that a request names."""

    @property
    def accepted(self) -> tuple[Signers, ...]: ...


Named = TypeVar("Named", bound=Apps)


class Reception:
    """Lets in whoever signs with the secrets of the apps that the request names."""

    def __init__(self, gate: Gate, origins: Origins) -> None:
        self._gate = gate
        self._origins = origins

    async def admit(
        self, request: Request, name: Callable[[Mapping[str, Any]], Named]
    ) -> tuple[SignedRequest, Named, Origin]:
        """InputError: the body or the apps; SignError."""
        signed = canonical.read(await read_body(request))
        apps = name(signed.fields)
        await self._gate.admit(signed.text, signed.sign, apps.accepted)
        return signed, apps, self._origins.of(request)
