"""The settings of the console."""

import re
from typing import Annotated
from urllib.parse import urlsplit

import msgspec

from console.oidc.settings import OidcSettings
from console.shell.access import Demand
from services.domain.settings import PREFIX, Port, SettingsError
from services.net.http.client_address import url_host

ROLE_NAME = "console"


class ConsoleSettings(OidcSettings, frozen=True, kw_only=True):
    """The addresses that browsers use, and the provider with which people log in.

    `console_url`: that of the console; by default that of the port of this process.
    `console_gateway_url`: that of the gateways, to which virtual phones connect; by default that of a gateway beside
    this process, under the host of the console.
    `console_v2_url`: that of the v2 interface in examples of requests; by default that of an edge beside this process.
    `console_second_factor`: of whom a second factor is demanded, which is set up right after the log-in.
    `console_calls_per_s`: calls of `/console/v1` that an API token may make a second, on average.
    `backup_days`: for how long backups are kept; None: that is not known.
    `v2_max_period_s`: longest time to live that a push may ask for, in seconds, as at the edge.
    """

    console_url: str | None = None
    console_gateway_url: str | None = None
    console_v2_url: str | None = None
    console_second_factor: Demand = "nobody"
    console_calls_per_s: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 20
    backup_days: Annotated[int, msgspec.Meta(ge=1, le=36_500)] | None = None
    gateway_port: Port = 8400
    v2_port: Port = 8300
    v2_max_period_s: Annotated[int, msgspec.Meta(ge=60, le=31_536_000)] = 2_592_000
    gateway_tls_cert: str | None = None

    def check(self) -> None:
        super().check()
        self._check_gateway_url()
        _check_address("CONSOLE_URL", self.console_url)
        _check_address("CONSOLE_V2_URL", self.console_v2_url)

    def _check_gateway_url(self) -> None:
        url = urlsplit(self.console_gateway_url or "wss://push.example.org/device/v1")
        characters_are_right = re.fullmatch(r"[A-Za-z0-9.:/\[\]_~%-]+", url.geturl())
        if url.scheme not in ("ws", "wss") or not url.hostname or not characters_are_right:
            raise SettingsError(
                f"{PREFIX}CONSOLE_GATEWAY_URL is {self.console_gateway_url!r}; use wss://HOST/device/v1 or ws://HOST:PORT/device/v1"
            )

    @property
    def gateway_url(self) -> str:
        """The address at which browsers reach the gateways."""
        if self.console_gateway_url:
            return self.console_gateway_url
        scheme = "ws" if self.gateway_tls_cert is None else "wss"
        return f"{scheme}://{self._public_host}:{self.gateway_port}/device/v1"

    @property
    def v2_url(self) -> str:
        """The address of the v2 interface without a slash at its end."""
        if self.console_v2_url:
            return self.console_v2_url.rstrip("/")
        return f"http://{self._public_host}:{self.v2_port}"

    @property
    def public_url(self) -> str:
        """The address of the console without a slash at its end."""
        if self.console_url:
            return self.console_url.rstrip("/")
        return f"http://{url_host(self.host)}:{self.console_port}"

    @property
    def _public_host(self) -> str:
        """The host of `public_url`, as a URL has it."""
        return url_host(urlsplit(self.public_url).hostname or "")

    @property
    def is_secure(self) -> bool:
        """Whether people reach the console by HTTPS alone, so that cookies are marked Secure."""
        return self.public_url.startswith("https:")


def _check_address(name: str, given: str | None) -> None:
    url = urlsplit(given or "https://push.example.org")
    if url.scheme not in ("http", "https") or not url.hostname or url.path not in ("", "/") or url.query:
        raise SettingsError(f"{PREFIX}{name} is {given!r}; use https://HOST or http://HOST:PORT, without a path")
