"""The settings of the console."""

from urllib.parse import urlsplit

from services.runtime.process.settings import PREFIX, Settings, SettingsError

ROLE_NAME = "console"
_LOOPBACK_OF_WILDCARD = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104


class ConsoleSettings(Settings, frozen=True, kw_only=True):
    """`console_url`: the address under which people open the console; by default that of the port of this process."""

    console_url: str | None = None

    def check(self) -> None:
        super().check()
        if self.console_url is None:
            return
        url = urlsplit(self.console_url)
        if url.scheme not in ("http", "https") or not url.hostname or url.path not in ("", "/") or url.query:
            raise SettingsError(
                f"{PREFIX}CONSOLE_URL is {self.console_url!r}; use https://HOST or http://HOST:PORT, without a path"
            )

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
