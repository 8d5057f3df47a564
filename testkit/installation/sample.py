"""A running installation with a few apps and devices, for tests of its HTTP interfaces."""

import json
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import httpx

from testkit import plain_http
from testkit.installation.app_server import AppCredentials
from testkit.installation.processes import Installation
from testkit.signing import signed
from testkit.waiting import once_available

IOS_TOKEN = "a9d0ed10e9cfd022a61cb08753f49c5a0b0dfb383697bf9f9d750a1003da19c7"
INTERFACES = ("android", "ios", "v2")
Json = dict[str, Any]
Headers = Mapping[str, str] | None


class Service:
    """`carillon up` with one Android app, two iOS apps, and a device in each."""

    def __init__(self, data: Path) -> None:
        self.installation = Installation(data, None)
        self.urls = {
            "android": self.installation.android_url,
            "ios": self.installation.ios_url,
            "v2": self.installation.v2_url,
        }
        self._http = plain_http.client(timeout=30)

    def __enter__(self) -> "Service":
        try:
            self.installation.start()
            self.android = self.installation.create_app("android")
            self.ios = [self.installation.create_app("ios"), self.installation.create_app("ios")]
            self.installation.carillon("app", "set", self.android.appkey, "--ack-info", "on")
            self.secrets = {app.appkey: app.secret_key for app in (self.android, *self.ios)}
            self.device = self._register({"appkey": self.android.appkey})
            self.register_ios_devices()
        except BaseException:
            self.installation.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._http.close()
        try:
            if kind is None:
                self.installation.stop()
        finally:
            self.installation.close()

    def get(self, interface: str, path: str) -> httpx.Response:
        return self._http.get(self.urls[interface] + path)

    def send(
        self,
        interface: str,
        method: str,
        path: str,
        body: Mapping[str, Any],
        *apps: AppCredentials,
        headers: Headers = None,
    ) -> httpx.Response:
        """Send a request signed with the secrets of these apps; without any, unsigned."""
        if apps:
            content = signed(dict(body), *(app.secret_key for app in apps))
        else:
            content = json.dumps(body, ensure_ascii=False).encode()
        return self._http.request(method, self.urls[interface] + path, content=content, headers=headers)

    def audit(self, msgid: int) -> Json:
        """Return the service's audit of a push."""
        found: Json = json.loads(
            once_available(lambda: self.installation.carillon("audit", "push", str(msgid), "--json"))
        )
        return found

    def register_ios_devices(self) -> None:
        """Register the iOS devices, again where a request has deleted them: their keys stay the same."""
        self.ios_devices = [self._register({"appkey": app.appkey, "token": IOS_TOKEN}) for app in self.ios]

    def _register(self, who: Mapping[str, Any]) -> Json:
        welcome: Json = self.send("v2", "POST", "/device/v1", {"type": "hello", **who}).json()
        assert welcome["type"] == "welcome", welcome
        for frame in ({"type": "set_alias", "alias": "alice"}, {"type": "add_stags", "stags": ["news"]}):
            credentials = {"appkey": who["appkey"], "token": welcome["token"], "key": welcome["key"]}
            assert self.send("v2", "POST", "/device/v1", {**frame, **credentials}).json()["type"] == "ok"
        return welcome
