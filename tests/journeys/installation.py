"""A whole service under test: real processes, reached as its users reach it."""

import asyncio
import contextlib
import hashlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil

from testkit.apns_keys import KEY_ID, TEAM_ID, pem

CARILLON = str(Path(sys.executable).parent / "carillon")
CALLED = ("registry", "targeting", "scheduling", "delivery", "analytics")
DOORS = ("gateway", "edge")
_START_S = 90


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on now."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()


@dataclass(frozen=True)
class TestApp:
    """An app as its owner has it."""

    __test__ = False
    appkey: str
    secret_key: str


@dataclass(frozen=True)
class _Instance:
    """One process: what it is told beside what all are told."""

    arguments: tuple[str, ...]
    console_port: int
    env: Mapping[str, str]


class Installation:
    """The processes of one service. `embedded`: one, `carillon up`; else one a role over Kafka, `carillon serve`.

    With `shards` of more than one the roles that keep a state are so many processes each: `registry-0`, `registry-1`...
    """

    def __init__(self, data: Path, kafka_bootstrap: str | None, *, shards: int = 1) -> None:
        self.data = data
        self.embedded = kafka_bootstrap is None
        v2, android, ios, gateway, *rest = free_ports(4 + 2 * shards * len(CALLED) + len(DOORS))
        ports = iter(rest)
        self.v2_url = f"http://127.0.0.1:{v2}"
        self.android_url = f"http://127.0.0.1:{android}"
        self.ios_url = f"http://127.0.0.1:{ios}"
        self.gateway_url = f"ws://127.0.0.1:{gateway}/device/v1"
        self.env = {
            **{name: value for name, value in os.environ.items() if not name.startswith("CARILLON_")},
            "CARILLON_DATA_DIR": str(data),
            "CARILLON_HOST": "127.0.0.1",
            "CARILLON_V2_PORT": str(v2),
            "CARILLON_ANDROID_PORT": str(android),
            "CARILLON_IOS_PORT": str(ios),
            "CARILLON_GATEWAY_PORT": str(gateway),
            "CARILLON_PARTITIONS": "8",
            "CARILLON_TIMEZONE": "Asia/Shanghai",
            "CARILLON_LOG_LEVEL": "INFO",
            "CARILLON_ACK_DELAY_S": "1",
        }
        if kafka_bootstrap:
            self.env["CARILLON_KAFKA_BOOTSTRAP"] = kafka_bootstrap
            for role in CALLED:
                self.env[f"CARILLON_{role.upper()}_ADDR"] = ",".join(f"127.0.0.1:{next(ports)}" for _ in range(shards))
        self._instances = _served(shards, ports) if kafka_bootstrap else {"up": _Instance(("up",), next(ports), {})}
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    @property
    def names(self) -> tuple[str, ...]:
        """The processes of a whole service, in the order of starting."""
        return tuple(self._instances)

    def start(self, *names: str) -> None:
        """Start these processes, or every one, and return once they are ready."""
        self.data.mkdir(parents=True, exist_ok=True)
        for name in names or self.names:
            arguments = [CARILLON, *self._instances[name].arguments]
            with self.output(name).open("ab") as output:
                self._processes[name] = subprocess.Popen(
                    arguments, env=self.env_of(name), stdout=output, stderr=subprocess.STDOUT, cwd=self.data
                )
        for name in names or self.names:
            self._wait_ready(name)

    def env_of(self, name: str) -> dict[str, str]:
        """What a process is told."""
        instance = self._instances[name]
        return {**self.env, "CARILLON_CONSOLE_PORT": str(instance.console_port), **instance.env}

    def output(self, name: str = "up") -> Path:
        """What a process has printed."""
        return self.data / f"{name}.out"

    def stop(self, *names: str) -> None:
        """SIGTERM to these, or every one, doors first; each must end well and in time."""
        for name in reversed([name for name in self.names if name in (names or self._processes)]):
            process = self._processes.pop(name)
            process.send_signal(signal.SIGTERM)
            code = process.wait(timeout=40)
            assert code == 0, f"{name} ended with {code}: {self._recent(name)}"

    def kill(self, name: str = "up") -> None:
        """SIGKILL, its children too."""
        self.signal(name, signal.SIGKILL)
        self._processes.pop(name).wait(timeout=20)

    def signal(self, name: str, number: signal.Signals) -> None:
        """To the process and its children."""
        process = psutil.Process(self._processes[name].pid)
        for each in (process, *process.children(recursive=True)):
            with contextlib.suppress(psutil.NoSuchProcess):
                each.send_signal(number)

    def ended(self, *names: str) -> dict[str, int]:
        """The exit codes of those of these that ended by themselves; they count as stopped from now on."""
        running = {name: self._processes[name] for name in names if name in self._processes}
        codes = {name: code for name, process in running.items() if (code := process.poll()) is not None}
        for name in codes:
            del self._processes[name]
        return codes

    def close(self) -> None:
        """End whatever still runs."""
        for name in list(self._processes):
            with contextlib.suppress(psutil.NoSuchProcess):
                self.signal(name, signal.SIGKILL)
            self._processes.pop(name).wait(timeout=20)

    def carillon(
        self,
        *arguments: str,
        stdin: str | None = None,
        check: bool = True,
        seconds: float = 60,
        of: str | None = None,
    ) -> str:
        """Run an operators' command to its end, `of` a process as that process is told; returns what it printed."""
        done = subprocess.run(
            [CARILLON, *arguments],
            env=self.env_of(of) if of else self.env,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=seconds,
            cwd=self.data,
            check=False,
        )
        assert not check or done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def create_app(self, platform: str = "android") -> TestApp:
        made = json.loads(
            self.carillon("app", "create", "--platform", platform, "--name", "T", "--package", "org.t", "--json")
        )
        return TestApp(made["appkey"], made["secret_key"])

    def give_key(self, app: TestApp) -> None:
        """Without one nothing is sent to an Apple outside."""
        file = self.data.parent / f"{app.appkey}.p8"
        file.write_text(pem())
        given = ("--apns-key", str(file), "--apns-key-id", KEY_ID, "--apns-team", TEAM_ID)
        self.carillon("app", "set", app.appkey, *given)

    def _wait_ready(self, name: str) -> None:
        url = f"http://127.0.0.1:{self._instances[name].console_port}/healthz"
        deadline = time.monotonic() + _START_S
        while time.monotonic() < deadline:
            assert self._processes[name].poll() is None, f"{name} ended: {self._recent(name)}"
            try:
                answer = httpx.get(url, timeout=2)
            except httpx.TransportError:
                time.sleep(0.05)
                continue
            if answer.status_code == 200:
                assert answer.json() == {"status": "ready"}
                return
            time.sleep(0.05)
        raise AssertionError(f"{name} is not ready after {_START_S} s: {self._recent(name)}")

    def _recent(self, name: str) -> str:
        return self.output(name).read_text(errors="replace")[-4000:]


def _served(shards: int, console_ports: Iterator[int]) -> dict[str, _Instance]:
    """One process a role, or a shard of it, by name and in the order of starting."""
    instances = {
        role if shards == 1 else f"{role}-{shard}": _Instance(
            ("serve", role),
            next(console_ports),
            {"CARILLON_SHARD": str(shard), "CARILLON_SHARDS": str(shards)},
        )
        for role in CALLED
        for shard in range(shards)
    }
    return instances | {role: _Instance(("serve", role), next(console_ports), {}) for role in DOORS}


class AppServer:
    """An app's own server: signs requests as the interface says, written apart from the service's own code."""

    def __init__(self, url: str) -> None:
        self._client = httpx.AsyncClient(base_url=url, timeout=30)

    async def push(self, body: Mapping[str, Any], *secrets: str) -> dict[str, Any]:
        """POST /v2/push; returns the answer."""
        return await self.call("POST", "/v2/push", body, *secrets)

    async def call(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any],
        *secrets: str,
        headers: Mapping[str, str] | None = None,
    ) -> dict[str, Any]:
        """Any signed request; returns the answer."""
        canonical = json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        sign = hashlib.md5((canonical + "".join(secrets)).encode()).hexdigest()
        response = await self._client.request(method, path, json={**body, "sign": sign}, headers=headers)
        assert response.status_code == 200, response.text
        assert response.headers["content-type"].replace(" ", "").lower() == "application/json;charset=utf-8"
        answer: dict[str, Any] = response.json()
        return answer

    async def device_request(self, frame: Mapping[str, Any]) -> dict[str, Any]:
        """POST /device/v1; returns the answer frame."""
        response = await self._client.post("/device/v1", json=frame)
        answer: dict[str, Any] = response.json()
        return answer

    async def close(self) -> None:
        await self._client.aclose()


async def until(condition: Any, seconds: float = 20) -> Any:
    """The first true value of an async condition; AssertionError when there is none in time."""
    async with asyncio.timeout(seconds):
        while not (value := await condition()):
            await asyncio.sleep(0.05)
        return value
