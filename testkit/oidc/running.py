"""A real OpenID Connect provider in a Node process: the npm package `oidc-provider`, pinned by `package-lock.json`."""

import contextlib
import hashlib
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from subprocess import PIPE, Popen
from typing import Any

from testkit.plain_http import client
from testkit.ports import free_ports
from testkit.programs import needed
from testkit.repository import ROOT

SECRET = "secret of the client: 100% & more"
_HERE = Path(__file__).resolve().parent
_CACHE = ROOT / ".cache" / "oidc-provider"


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
    command = [needed("node"), "--no-warnings", str(_HERE / "provider.mjs"), str(_packages()), json.dumps(settings)]
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


def _packages() -> Path:
    """Return the directory with the pinned packages, which npm fetches once."""
    lock = (_HERE / "package-lock.json").read_bytes()
    directory = _CACHE / hashlib.sha256(lock).hexdigest()[:16]
    if not directory.exists():
        _CACHE.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=_CACHE) as scratch:
            for name in ("package.json", "package-lock.json"):
                shutil.copyfile(_HERE / name, Path(scratch, name))
            command = [needed("npm"), "ci", "--silent", "--ignore-scripts", "--no-audit", "--no-fund"]
            subprocess.run(command, cwd=scratch, check=True, capture_output=True)
            made = Path(scratch, "made")
            made.mkdir()
            os.rename(Path(scratch, "node_modules"), made / "node_modules")
            with contextlib.suppress(OSError):  # another test process was faster
                os.rename(made, directory)
    return directory
