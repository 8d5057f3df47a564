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


class SampleService:
    """`carillon up` with one Android app, two iOS apps, and a device in each."""

    def __init__(self, data: Path) -> None:
        self.installation = Installation(data, None)
        self.urls = {
            "android": self.installation.android_url,
            "ios": self.installation.ios_url,
            "v2": self.installation.v2_url,
        }
        self.ios_devices: list[Json] = []
        self._http = plain_http.client(timeout=30)

    def __enter__(self) -> "SampleService":
        try:
            self.installation.start()
            self.android = self.installation.create_app("android")
            self.ios = [self.installation.create_app("ios"), self.installation.create_app("ios")]
            self.installation.carillon("app", "set", self.android.appkey, "--ack-info", "on")
            self.secrets = {app.appkey: app.secret_key for app in (self.android, *self.ios)}
            android = {"appkey": self.android.appkey}
            self.device = self._named(self.android.appkey, self._hello(android))
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
        """Register the iOS devices, again where a request has deleted them.

        Their keys stay the same, unless a request has registered the token without its key: then it starts anew.
        """
        keys = [{"key": device["key"]} for device in self.ios_devices] or [{}] * len(self.ios)
        self.ios_devices = [self._register_ios(app, key) for app, key in zip(self.ios, keys, strict=True)]

    def _register_ios(self, app: AppCredentials, key: Mapping[str, str]) -> Json:
        who = {"appkey": app.appkey, "token": IOS_TOKEN}
        welcome = self._hello({**who, **key})
        if welcome["type"] != "welcome":
            assert self.send("ios", "DELETE", "/register", who, app).json()["result"] == 0
            welcome = self._hello(who)
        return self._named(app.appkey, welcome)

    def _hello(self, who: Mapping[str, Any]) -> Json:
        answer: Json = self.send("v2", "POST", "/device/v1", {"type": "hello", **who}).json()
        return answer

    def _named(self, appkey: str, welcome: Json) -> Json:
        """Give the device of a welcome its alias and its tag."""
        assert welcome["type"] == "welcome", welcome
        for frame in ({"type": "set_alias", "alias": "alice"}, {"type": "add_stags", "stags": ["news"]}):
            credentials = {"appkey": appkey, "token": welcome["token"], "key": welcome["key"]}
            assert self.send("v2", "POST", "/device/v1", {**frame, **credentials}).json()["type"] == "ok"
        return welcome
