"""The demo's installation: `carillon up` as a process, with its addresses."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import httpx

from carillon.environment import environment
from demo.moved_clock import VARIABLE
from services.domain.settings import Port, Settings, load
from services.errors import CarillonError
from services.net.sockets import hard_file_limit

_READY_S = 240
_POLL_S = 0.2
_STOP_S = 60
_LONGEST_LEAP_S = 86_400
_FIRST_LINK = re.compile(r"http://\S+(/link\?token=\S+)")


class DemoSettings(Settings, frozen=True, kw_only=True):
    """The ports of the installation, which are those of `carillon up`."""

    v2_port: Port = 8300
    android_port: Port = 8001
    ios_port: Port = 8200
    gateway_port: Port = 8400


class DemoService:
    """The process of `carillon up`. Its data, its output and the file of its clock are in one directory.

    It listens on 127.0.0.1 alone, since the passwords of the demo's people are known.
    """

    def __init__(self, directory: Path, extra: Mapping[str, str]) -> None:
        self.clock_file = directory / "clock"
        self._output = directory / "carillon.log"
        self._env = {
            **os.environ,
            "CARILLON_GATEWAY_REGISTRATIONS_PER_S": "1000000",
            "CARILLON_REGISTRATIONS_PER_MINUTE": "0",
            "CARILLON_REGISTRATIONS_PER_MINUTE_PER_ADDRESS": "0",
            "CARILLON_GATEWAY_CONNECTIONS_PER_ADDRESS": str(hard_file_limit()),
            # Leaps of the clock are no silence of devices.
            "CARILLON_GATEWAY_HEARTBEAT_S": str(_LONGEST_LEAP_S),
            "CARILLON_GATEWAY_HEARTBEAT_MAX_S": str(_LONGEST_LEAP_S),
            "CARILLON_GATEWAY_ACK_S": str(_LONGEST_LEAP_S),
            "CARILLON_LOG_LEVEL": "WARNING",
            **extra,
            "CARILLON_HOST": "127.0.0.1",
            "CARILLON_DATA_DIR": str((directory / "data").absolute()),
            VARIABLE: str(self.clock_file.absolute()),
        }
        self.settings = load(DemoSettings, {**environment(), **self._env})
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def console_url(self) -> str:
        return self._url(self.settings.console_port)

    @property
    def v2_url(self) -> str:
        return self._url(self.settings.v2_port)

    @property
    def android_url(self) -> str:
        return self._url(self.settings.android_port)

    @property
    def ios_url(self) -> str:
        return self._url(self.settings.ios_port)

    @property
    def gateway_url(self) -> str:
        return f"ws://127.0.0.1:{self.settings.gateway_port}/device/v1"

    def start(self) -> None:
        """Start the process; return when every role is ready. CarillonError: it ended, or takes too long."""
        with self._output.open("ab") as output:
            command = [sys.executable, "-m", "demo.moved_clock", "up"]
            # A process group of its own: Ctrl-C is for the demo, which then stops the service.
            self._process = subprocess.Popen(
                command, env=self._env, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
            )
        ends_s = time.monotonic() + _READY_S
        with httpx.Client(trust_env=False) as http:
            while not self._is_ready(http):
                if self._process.poll() is not None or time.monotonic() > ends_s:
                    raise CarillonError(f"the service does not start: {self._output.read_text()[-2000:]}")
                time.sleep(_POLL_S)

    def first_link(self) -> str:
        """Return the path at which the first administrator chooses a password."""
        ends_s = time.monotonic() + _READY_S
        while (found := _FIRST_LINK.search(self._output.read_text())) is None:
            if time.monotonic() > ends_s:
                raise CarillonError("the service printed no link for the first administrator")
            time.sleep(_POLL_S)
        return found[1]

    def carillon(self, *arguments: str) -> None:
        """Run an operator's command on this installation."""
        command = [sys.executable, "-m", "demo.moved_clock", *arguments]
        done = subprocess.run(command, env=self._env, capture_output=True, text=True, check=False)
        if done.returncode:
            raise CarillonError(f"carillon {' '.join(arguments)}: {done.stderr.strip() or done.stdout.strip()}")

    def wait(self) -> int:
        """Return the exit code once the process has ended."""
        return self._process.wait() if self._process is not None else 0

    def stop(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                self._process.kill()

    def _is_ready(self, http: httpx.Client) -> bool:
        try:
            return http.get(f"{self.console_url}/healthz").status_code == 200
        except httpx.TransportError:
            return False

    def _url(self, port: int) -> str:
        return f"http://127.0.0.1:{port}"
