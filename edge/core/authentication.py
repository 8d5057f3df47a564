"""The way into a door whose requests name one app, `appkey`, at the top of the body."""

from typing import NamedTuple

from falcon.asgi import Request

from edge.core.origins import Origins
from edge.core.parsing import canonical
from edge.core.parsing.body import read_body
from edge.core.signature import AppRef, Gate
from protos.registry.v1.apps_pb2 import App, Platform
from protos.runtime.v1.log_pb2 import Origin
from services.domain.apps import AppDirectory
from services.domain.master_key import MasterKey
from services.runtime.errors import InputError, SignError


class Admitted(NamedTuple):
    """A request signed by its app. `raw` is the body, `text` what was signed of it."""

    raw: bytes
    text: str
    app: App
    origin: Origin

    @property
    def ref(self) -> AppRef:
        return AppRef(self.app.appkey, self.app.platform)


class Entry:
    """Lets in the requests that an app of the door's platform has signed."""

    def __init__(self, door: str, platform: "Platform.ValueType", apps: AppDirectory, keys: MasterKey) -> None:
        self._platform = platform
        self._apps = apps
        self._gate = Gate(apps, keys)
        self._origins = Origins(door)

    async def admit(self, request: Request) -> Admitted:
        """InputError: the body is no signed request. SignError: wrong sign, or no such app of this platform."""
        signed = canonical.read(await read_body(request))
        given = signed.fields.get("appkey")
        if given is None:
            raise InputError("appkey is missing")
        appkey = canonical.number_or_text(given)
        if appkey is None:
            raise InputError("appkey must be a string")
        await self._gate.admit(signed.text, signed.sign, [(AppRef(appkey, self._platform),)])
        app = self._apps.get(appkey)
        if app is None:
            raise SignError("sign not correct")
        return Admitted(signed.raw, signed.text, app, self._origins.of(request))
