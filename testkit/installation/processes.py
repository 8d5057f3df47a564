"""An installation of Carillon: its processes, started, stopped and killed, and its addresses."""

import contextlib
import datetime
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import httpx
import psutil

from carillon.commands.acls import PASSWORD_FILE
from carillon.commands.certs import CertificateTerms, WantedCertificate, operator, update
from services.domain.master_key import create_master
from services.net.rpc.caller import OPERATOR
from testkit import plain_http
from testkit.apns.keys import KEY_ID, TEAM_ID, pem
from testkit.installation.app_server import AppCredentials
from testkit.installation.definitions import (
    BACKENDS,
    CONSOLE,
    FRONTENDS,
    STANDBYS,
    ProcessDefinition,
    role_processes,
    standby_process,
    tls_settings,
)
from testkit.kafka.broker import KafkaBroker
from testkit.ports import free_ports
from testkit.waiting import blocking_until

CARILLON = str(Path(sys.executable).parent / "carillon")
UNLIMITED_REGISTRATIONS = {
    "CARILLON_GATEWAY_REGISTRATIONS_PER_S": "1000000",
    "CARILLON_REGISTRATIONS_PER_MINUTE": "0",
    "CARILLON_REGISTRATIONS_PER_MINUTE_PER_ADDRESS": "0",
}
"""Settings with which thousands of devices of one host may register at once."""

_START_S = 240


class Installation:
    """The processes of one installation: `carillon up`, or with Kafka `carillon serve` for each role.

    The processes of roles call each other with mutual TLS, each with a certificate of its role. Only those of analytics
    can import the packages of the extra `embedded`.

    With `shards` above 1 each role that keeps a state is that many processes: `registry-0`, `registry-1`... With
    `standbys` a process such as `scheduling-standby` has the first shard of its role too, and its own data directory.
    With `console` the roles accounts, webhooks and console run too; `carillon up` always has them. With `kafka_users`,
    a broker that has an authorizer, `carillon acls` makes a user for each role, and each process logs in as that of its
    role.

    `supervised`: the test restarts processes that end by themselves. Otherwise waiting for such a process fails.
    """

    def __init__(
        self,
        data: Path,
        kafka_bootstrap: str | None,
        *,
        shards: int = 1,
        standbys: bool = False,
        console: bool = False,
        kafka_users: KafkaBroker | None = None,
    ) -> None:
        self.data = data
        self._kafka_users = kafka_users
        self._certificates = Path(tempfile.mkdtemp(prefix="carillon-certificates-"))
        self.embedded = kafka_bootstrap is None
        count = 5 + 2 * (shards * len(BACKENDS) + len(STANDBYS) + len(CONSOLE)) + len(FRONTENDS)
        v2, android, ios, gateway, self.metrics_port, *rest = free_ports(count)
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
            "CARILLON_METRICS_PORT": str(self.metrics_port),
            "CARILLON_PARTITIONS": "8",
            "CARILLON_TIMEZONE": "Asia/Shanghai",
            "CARILLON_LOG_LEVEL": "INFO",
            "CARILLON_ACK_DELAY_S": "1",
        }
        if kafka_bootstrap:
            self.env["CARILLON_KAFKA_BOOTSTRAP"] = kafka_bootstrap
            for role in BACKENDS:
                self.env[f"CARILLON_{role.upper()}_ADDR"] = ",".join(f"127.0.0.1:{next(ports)}" for _ in range(shards))
            for role in ("ACCOUNTS", "WEBHOOKS"):
                self.env[f"CARILLON_{role}_ADDR"] = f"127.0.0.1:{next(ports)}"
            single = (*FRONTENDS, *(CONSOLE if console else ()))
            roles = [WantedCertificate(role, role, role, frozenset(["127.0.0.1"])) for role in (*BACKENDS, *single)]
            now = datetime.datetime.now(datetime.UTC)
            update(self._certificates, [*roles, operator(OPERATOR)], now, CertificateTerms(days=365, renew_days=30))
            self.env |= tls_settings(self._certificates, f"{OPERATOR}-{OPERATOR}")
            self._definitions = role_processes(shards, single, ports, self._certificates)
            for name in STANDBYS if standbys else ():
                self._definitions[name] = standby_process(name, shards, ports, self.env, self._definitions)
        else:
            self.env["CARILLON_SEAL_NEW"] = "false"  # tests compare what is in the log; those of sealing begin it
            self._definitions = {"up": ProcessDefinition(("up",), next(ports), {})}
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self.supervised = False

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all processes, in the order of starting."""
        return tuple(self._definitions)

    def start(self, *names: str, seconds: float = _START_S) -> None:
        """Start these processes, or all, and return once they are ready, each within `seconds`."""
        self.data.mkdir(parents=True, exist_ok=True)
        if not self.embedded:
            create_master(self.data / "master.key")
        if self._kafka_users is not None and "CARILLON_KAFKA_SASL_USER" not in self.env:
            self._make_users(self._kafka_users)
        for name in names or self.names:
            self._processes[name] = self._launch(name)
        self.wait_ready(*names, seconds=seconds)

    def wait_ready(self, *names: str, seconds: float = _START_S) -> None:
        """Return once these processes, or all, are ready, each within `seconds`."""
        for name in names or self.names:
            self._wait_ready(name, seconds)

    def restart_ended(self, *names: str) -> dict[str, str]:
        """Restart those of these processes that have ended by themselves; return by name why each ended."""
        running = {name: self._processes[name] for name in names if name in self._processes}
        codes = {name: code for name, process in running.items() if (code := process.poll()) is not None}
        ended = {name: f"code {code}: {self._last_line(name)}" for name, code in codes.items()}
        for name in codes:
            self._processes[name] = self._launch(name)
        return ended

    def has_ended(self, name: str) -> bool:
        """Return whether a process that was started has ended by itself."""
        return self._processes[name].poll() is not None

    def process_id(self, name: str = "up") -> int:
        """Return the id of a process that was started."""
        return self._processes[name].pid

    def env_of(self, name: str) -> dict[str, str]:
        """Return the environment of a process."""
        definition = self._definitions[name]
        env = {**self.env, "CARILLON_CONSOLE_PORT": str(definition.operations_port), **definition.env}
        return {**env, **(self._log_in(definition.arguments[1]) if self._kafka_users is not None else {})}

    def _log_in(self, user: str) -> dict[str, str]:
        """Return the settings of a process that is a user of the Kafka cluster."""
        assert self._kafka_users is not None
        values = {
            "BOOTSTRAP": self._kafka_users.at("SASL_PLAINTEXT"),
            "SECURITY_PROTOCOL": "SASL_PLAINTEXT",
            "SASL_MECHANISM": "SCRAM-SHA-512",
            "SASL_USER": f"carillon-{user}",
            "SASL_PASSWORD_FILE": str(self._certificates / user / PASSWORD_FILE),
        }
        return {f"CARILLON_KAFKA_{name}": value for name, value in values.items()}

    def _make_users(self, broker: KafkaBroker) -> None:
        """Make the users, as the administrator of the cluster; commands run as `operator` from then on."""
        subprocess.run(
            [CARILLON, "acls", "--apply", "--passwords", str(self._certificates)],
            env={**self.env, "CARILLON_KAFKA_BOOTSTRAP": broker.bootstrap},
            check=True,
            timeout=600,
            cwd=self.data,
            stdout=subprocess.DEVNULL,
        )
        self.env |= self._log_in(OPERATOR)

    def output(self, name: str = "up") -> Path:
        """Return the file with everything that a process has printed."""
        return self.data / f"{name}.out"

    def stop(self, *names: str, number: signal.Signals = signal.SIGTERM) -> None:
        """Send the signal to these processes, or all, frontends first; each must end in time with exit code 0."""
        for name in reversed([name for name in self.names if name in (names or self._processes)]):
            process = self._processes.pop(name)
            process.send_signal(number)
            self._wait_stopped(name, process)

    def wait_stopped(self, name: str = "up") -> None:
        """Wait for a process that was asked to stop; it must end in time with exit code 0."""
        self._wait_stopped(name, self._processes.pop(name))

    def _wait_stopped(self, name: str, process: subprocess.Popen[bytes]) -> None:
        code = process.wait(timeout=40)
        assert code == 0, f"{name} ended with {code}: {self._recent(name)}"

    def kill(self, name: str = "up") -> None:
        """Send SIGKILL to the process, and to its children unless they end with it by themselves."""
        process = self._processes.pop(name)
        children = psutil.Process(process.pid).children(recursive=True)
        for each in (process, *(children if name != "up" else ())):
            with contextlib.suppress(psutil.NoSuchProcess):
                each.kill()
        process.wait(timeout=20)
        _, alive = psutil.wait_procs(children, timeout=20)
        assert not alive, f"{alive} outlived {name}"

    def signal(self, name: str, number: signal.Signals) -> None:
        """Send the signal to the process and its children."""
        for each in self._tree(name):
            with contextlib.suppress(psutil.NoSuchProcess):
                each.send_signal(number)

    def cpu_s(self, name: str = "up") -> float:
        """Return the CPU time of the process and its children, the kernel's for them included."""
        times = [each.cpu_times() for each in self._tree(name)]
        return float(sum(each.user + each.system for each in times))

    def resident_bytes(self, name: str = "up") -> int:
        """Return the resident memory of the process and its children."""
        return sum(int(each.memory_info().rss) for each in self._tree(name))

    def child_process(self, role: str) -> psutil.Process:
        """Return the child process of `carillon up` that runs the role: analytics or console."""
        children = psutil.Process(self._processes["up"].pid).children()
        return next(each for each in children if f"up-{role}" in each.cmdline())

    def operations_url(self, name: str = "up") -> str:
        """Return the address at which a process answers /healthz and /livez, and /metrics unless it serves pages."""
        return f"http://127.0.0.1:{self._definitions[name].operations_port}"

    def metrics_url(self) -> str:
        """Return the address of the metrics of the process that serves the console."""
        return f"http://127.0.0.1:{self.metrics_port}/metrics"

    def console_url(self) -> str:
        """Return the address of the console, which is that of its process's operations endpoint too."""
        return self.operations_url("up" if self.embedded else "console")

    def close(self) -> None:
        """Kill all processes that still run."""
        for name in list(self._processes):
            tree: Sequence[psutil.Process] = ()
            with contextlib.suppress(psutil.NoSuchProcess):
                tree = self._tree(name)
            process = self._processes.pop(name)
            for each in tree:
                with contextlib.suppress(psutil.NoSuchProcess):
                    each.kill()
            process.wait(timeout=20)
        shutil.rmtree(self._certificates, ignore_errors=True)

    def carillon(
        self,
        *arguments: str,
        stdin: str | None = None,
        check: bool = True,
        seconds: float = 600,
        of: str | None = None,
    ) -> str:
        """Run an operator's command with the settings of the process `of`; return its standard output."""
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

    def create_app(self, platform: str = "android") -> AppCredentials:
        made = json.loads(
            self.carillon("app", "create", "--platform", platform, "--name", "T", "--package", "org.t", "--json")
        )
        return AppCredentials(made["appkey"], made["secret_key"])

    def give_key(self, app: AppCredentials) -> None:
        """Set the APNs key of an iOS app; without one nothing is sent to an APNs outside the installation."""
        file = self.data.parent / f"{app.appkey}.p8"
        file.write_text(pem())
        given = ("--apns-key", str(file), "--apns-key-id", KEY_ID, "--apns-team", TEAM_ID)
        self.carillon("app", "set", app.appkey, *given)

    def _tree(self, name: str) -> list[psutil.Process]:
        """Return the process and its children."""
        process = psutil.Process(self._processes[name].pid)
        return [process, *process.children(recursive=True)]

    def _launch(self, name: str) -> subprocess.Popen[bytes]:
        arguments = [CARILLON, *self._definitions[name].arguments]
        with self.output(name).open("ab") as output:
            return subprocess.Popen(
                arguments, env=self.env_of(name), stdout=output, stderr=subprocess.STDOUT, cwd=self.data
            )

    def _wait_ready(self, name: str, seconds: float) -> None:
        def is_ready() -> bool:
            assert self.supervised or self._processes[name].poll() is None, f"{name} ended: {self._recent(name)}"
            try:
                answer = http.get(f"{self.operations_url(name)}/healthz")
            except httpx.TransportError:
                return False
            assert answer.status_code != 200 or answer.json()["status"] == "ready"
            return answer.status_code == 200

        try:
            with plain_http.client(timeout=2) as http:
                blocking_until(is_ready, seconds)
        except TimeoutError:
            raise AssertionError(f"{name} is not ready after {seconds} s: {self._recent(name)}") from None

    def _last_line(self, name: str) -> str:
        return self._recent(name).strip().rpartition("\n")[2]

    def _recent(self, name: str) -> str:
        return self.output(name).read_text(errors="replace")[-4000:]
