"""The settings of the console."""

import re
from urllib.parse import urlsplit

from services.runtime.process.settings import PREFIX, Port, Settings, SettingsError

ROLE_NAME = "console"
_LOOPBACK_OF_WILDCARD = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104


class ConsoleSettings(Settings, frozen=True, kw_only=True):
    """The addresses that browsers use.

    `console_url`: that of the console; by default that of the port of this process.
    `console_gateway_url`: that of the gateways, to which virtual phones connect; by default that of a gateway beside
    this process, under the host of the console.
    """

    console_url: str | None = None
    console_gateway_url: str | None = None
    gateway_port: Port = 8400
    gateway_tls_cert: str | None = None

    def check(self) -> None:
        super().check()
        self._check_gateway_url()
        if self.console_url is None:
            return
        url = urlsplit(self.console_url)
        if url.scheme not in ("http", "https") or not url.hostname or url.path not in ("", "/") or url.query:
            raise SettingsError(
                f"{PREFIX}CONSOLE_URL is {self.console_url!r}; use https://HOST or http://HOST:PORT, without a path"
            )

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
        host = urlsplit(self.public_url).hostname or ""
        scheme = "ws" if self.gateway_tls_cert is None else "wss"
        return f"{scheme}://{f'[{host}]' if ':' in host else host}:{self.gateway_port}/device/v1"

    @property
    def public_url(self) -> str:
        """The address of the console without a slash at its end."""
        if self.console_url:
            return self.console_url.rstrip("/")
        host = _LOOPBACK_OF_WILDCARD.get(self.host, self.host)
        return f"http://{f'[{host}]' if ':' in host else host}:{self.console_port}"

    @property
    def is_secure(self) -> bool:
        """Whether people reach the console by HTTPS alone, so that cookies are marked Secure."""
        return self.public_url.startswith("https:")
