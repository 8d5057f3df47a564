"""A real OpenID Connect provider in a Node process: the npm package `oidc-provider`, pinned by `package-lock.json`."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from subprocess import PIPE, Popen
from typing import Any

from testkit.npm_packages import npm_packages
from testkit.plain_http import client
from testkit.ports import free_ports
from testkit.programs import needed

SECRET = "secret of the client: 100% & more"
_HERE = Path(__file__).resolve().parent


class RunningProvider:
    """The provider process. Clients: `console` with SECRET, `public-console`; `short-console` without refresh tokens.

    It sends log-out tokens to itself, where `log_out_tokens` takes them, unless it was started with another address.
    """

    def __init__(self, process: "Popen[str]", issuer: str) -> None:
        self._process = process
        self.issuer = issuer

    def person(self, name: str, *groups: str, sub: str = "", full_name: str = "") -> str:
        """Add or change a person, who logs in with the name; return the subject."""
        sub = sub or f"sub-{name}"
        claims = {"name": full_name or name.title(), "preferred_username": name, "groups": groups}
        self._control(person={"sub": sub, "claims": claims})
        return sub

    def leave(self, sub: str) -> None:
        """Remove a person."""
        self._control(leaver=sub)

    def rotate_key(self) -> None:
        """Sign with another key from now on, and publish no other."""
        self._control(newKey=True)

    def refuse_tokens(self, refuses: bool) -> None:
        """Answer requests for tokens with HTTP 503, or answer them again."""
        self._control(refusesTokens=refuses)

    def log_out_tokens(self) -> list[str]:
        """Return the log-out tokens that came since the last call."""
        tokens: list[str] = self._control()["logOutTokens"]
        return tokens

    def _control(self, **asked: Any) -> Any:
        with client() as http:
            return http.post(f"{self.issuer}/control", json=asked).raise_for_status().json()


@contextmanager
def running_provider(console_url: str, backchannel_url: str = "") -> Iterator[RunningProvider]:
    """Run a provider for a console at this address."""
    (port,) = free_ports(1)
    issuer = f"http://127.0.0.1:{port}"
    settings = {
        "port": port,
        "issuer": issuer,
        "console": console_url,
        "backchannel": backchannel_url or f"{issuer}/inbox",
        "secret": SECRET,
    }
    command = [
        needed("node"),
        "--no-warnings",
        str(_HERE / "provider.mjs"),
        str(npm_packages(_HERE)),
        json.dumps(settings),
    ]
    with Popen(command, stdin=PIPE, stdout=PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            # oidc-provider prints warnings about its settings for development first.
            said = next((line for line in process.stdout if line.strip() == "ready"), "")
            assert said, "the provider did not start"
            yield RunningProvider(process, issuer)
        finally:
            process.kill()
            process.wait()
