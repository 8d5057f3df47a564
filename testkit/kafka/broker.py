"""A real Kafka broker as a child process: no container, only Java and Maven.

One process is broker and controller (KRaft, combined mode), alone or as one of a cluster.
"""

import asyncio
import contextlib
import fcntl
import os
import signal
import socket
import subprocess
import tempfile
import time
import uuid
from base64 import urlsafe_b64encode
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import KafkaError

from testkit.kafka.jars import KafkaMissingError, kafka_jars
from testkit.ports import free_ports
from testkit.programs import needed

_START_SECONDS = 240
_SETTINGS = """\
process.roles=broker,controller
node.id={node}
listeners={listeners},CONTROLLER://127.0.0.1:{controller_port}
advertised.listeners={advertised}
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_SSL:SASL_SSL,\
SASL_PLAINTEXT:SASL_PLAINTEXT{plaintext}
inter.broker.listener.name=PLAINTEXT
controller.quorum.voters={voters}
log.dirs={directory}/data
auto.create.topics.enable=false
default.replication.factor={brokers}
offsets.topic.replication.factor={brokers}
offsets.topic.num.partitions=1
transaction.state.log.replication.factor={brokers}
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=1
num.network.threads=2
num.io.threads=2
log.index.size.max.bytes=1048576
log.cleaner.dedupe.buffer.size=8388608
log.cleaner.backoff.ms=100
broker.heartbeat.interval.ms=300
broker.session.timeout.ms=1500
"""


@dataclass(frozen=True)
class Security:
    """Listeners of a broker beside the plaintext one: Kafka's names of them, settings, and users that may log in.

    `users` are the arguments of `StorageTool format --add-scram`.
    """

    listeners: tuple[str, ...] = ()
    settings: str = ""
    users: tuple[str, ...] = ()


@dataclass(frozen=True)
class Member:
    """The membership of a broker in a cluster.

    `node`: its id, from 1 on. `controllers`: the ports of all nodes' controllers, in the order of their ids.
    `proxied`: names of further plaintext listeners; clients that bootstrap at one are sent to the port of its proxy.
    """

    cluster: str
    node: int
    controllers: Sequence[int]
    proxied: Mapping[str, int] = field(default_factory=dict)


AUTHORIZED = Security(
    ("SASL_PLAINTEXT",),
    """
authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
allow.everyone.if.no.acl.found=false
super.users=User:ANONYMOUS
sasl.enabled.mechanisms=SCRAM-SHA-512
listener.name.sasl_plaintext.scram-sha-512.sasl.jaas.config=\\
  org.apache.kafka.common.security.scram.ScramLoginModule required;
""",
)
"""An authorizer and users with passwords, as in docker-compose.yml: the plaintext listener is the administrator's."""


def new_cluster_id() -> str:
    return urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=").replace("-", "A", 1)


class KafkaBroker:
    """One broker on free ports of 127.0.0.1, its data in `directory`; every method blocks, with a bound."""

    def __init__(
        self,
        directory: Path,
        security: Security | None = None,
        member: Member | None = None,
        classes: Callable[[str], list[str]] | None = None,
    ) -> None:
        """`classes` returns the JVM's options for its archive of the classes that a main class uses."""
        self._directory = directory
        self._archived_classes = classes or archived_classes
        self._security = security or Security()
        self._member = member
        self._ports: dict[str, int] = {}
        self._process: subprocess.Popen[bytes] | None = None
        self._classpath = ""

    @property
    def bootstrap(self) -> str:
        """The address for clients, `host:port`; the same after a restart."""
        return self.at("PLAINTEXT")

    def at(self, listener: str) -> str:
        """Return the address of a listener by its name, `host:port`."""
        return f"127.0.0.1:{self._ports[listener]}"

    @property
    def data(self) -> Path:
        """The directory with the broker's data, which may be copied while the broker is stopped."""
        return self._directory / "data"

    def start(self) -> None:
        """Start the broker, after a stop or kill on the same data and port; return once it serves clients."""
        self.launch()
        self.wait_until_ready()

    def launch(self) -> None:
        """Start the process; see `wait_until_ready`. Brokers of a cluster serve once most of them run."""
        if not self._ports:
            self._prepare()
        with (self._directory / "broker.out").open("ab") as output:
            self._process = subprocess.Popen(
                self._java("kafka.Kafka", str(self._settings)), stdout=output, stderr=subprocess.STDOUT
            )

    def stop(self, seconds: float = 20) -> None:
        """Stop the broker in order; kill it when that takes longer than `seconds`."""
        process = self._running()
        self.resume()
        process.terminate()
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill()
        self._process = None

    def kill(self) -> None:
        """Send SIGKILL."""
        process = self._running()
        process.kill()
        process.wait(20)
        self._process = None

    def pause(self) -> None:
        """Send SIGSTOP: connections stay open and nothing answers."""
        process = self._running()
        process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def resume(self) -> None:
        """Send SIGCONT."""
        self._running().send_signal(signal.SIGCONT)

    def move(self) -> None:
        """Let the next start of this broker, which is stopped, listen on another port for clients."""
        (port,) = free_ports(1)
        moved = self._settings.read_text().replace(self.bootstrap, f"127.0.0.1:{port}")
        self._settings.write_text(moved)
        self._ports["PLAINTEXT"] = port

    def delete_topics(self) -> None:
        """Delete every topic, so that the next test finds an empty cluster."""
        asyncio.run(_delete_topics(self.bootstrap))

    @property
    def process_id(self) -> int:
        """The id of the process, which must run."""
        return self._running().pid

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise RuntimeError("the broker is not running")
        return self._process

    @property
    def _settings(self) -> Path:
        return self._directory / "server.properties"

    def _prepare(self) -> None:
        self._classpath = f"{kafka_jars()}/*"
        own_controller, cluster = free_ports(1), new_cluster_id()
        member = self._member or Member(cluster, 1, own_controller)
        names = ("PLAINTEXT", *self._security.listeners, *member.proxied)
        self._ports = dict(zip(names, free_ports(len(names)), strict=True))
        self._directory.mkdir(parents=True, exist_ok=True)
        settings = _SETTINGS.format(
            node=member.node,
            brokers=len(member.controllers),
            listeners=",".join(f"{name}://{self.at(name)}" for name in names),
            advertised=",".join(f"{n}://127.0.0.1:{member.proxied.get(n, port)}" for n, port in self._ports.items()),
            controller_port=member.controllers[member.node - 1],
            voters=",".join(f"{node}@127.0.0.1:{port}" for node, port in enumerate(member.controllers, 1)),
            plaintext="".join(f",{name}:PLAINTEXT" for name in member.proxied),
            directory=self._directory,
        )
        self._settings.write_text(settings + self._security.settings)
        users = [word for user in self._security.users for word in ("--add-scram", user)]
        subprocess.run(
            self._java("kafka.tools.StorageTool", "format", "-t", member.cluster, "-c", str(self._settings), *users),
            check=True,
            capture_output=True,
            timeout=_START_SECONDS,
        )

    def _java(self, main: str, *arguments: str) -> list[str]:
        return [
            "java",
            *self._archived_classes(main),
            "-Xmx384m",
            "-XX:+UseSerialGC",
            "-XX:TieredStopAtLevel=1",
            f"-Dkafka.logs.dir={self._directory}",
            "-cp",
            self._classpath,
            main,
            *arguments,
        ]

    def wait_until_ready(self) -> None:
        """Return once the broker serves clients."""
        deadline = time.monotonic() + _START_SECONDS
        while not _accepts(self._ports["PLAINTEXT"]) or not asyncio.run(_serves(self.bootstrap)):
            if not self.running or time.monotonic() > deadline:
                output = (self._directory / "broker.out").read_text(errors="replace")
                raise RuntimeError(f"the broker did not start:\n{output[-4000:]}")
            time.sleep(0.1)


def archived_classes(main: str) -> list[str]:
    """Return options by which a JVM maps the classes of a main class instead of reading them from the jars.

    To format and to start a broker then takes 3 s of CPU time in place of 8. The archives are made once, by a broker
    that is started and stopped, and kept in `.cache` beside the jars; a JVM that they do not fit leaves them alone.
    """
    folder = kafka_jars().with_name("kafka-classes")
    with folder.with_name("kafka-classes.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.is_dir():
            _archive_classes(folder)
    archive = folder / f"{main}.jsa"
    return [f"-XX:SharedArchiveFile={archive}", "-Xlog:disable"] if archive.exists() else []


def _archive_classes(folder: Path) -> None:
    partial = folder.with_name(f"kafka-classes.{os.getpid()}")
    with tempfile.TemporaryDirectory() as data:
        broker = KafkaBroker(Path(data), classes=lambda main: [f"-XX:ArchiveClassesAtExit={partial / main}.jsa"])
        partial.mkdir()
        broker.start()
        broker.stop(_START_SECONDS)
    partial.rename(folder)


def skip_without_kafka() -> None:
    """Skip the test if CARILLON_TEST_WITHOUT_KAFKA=1 allows it, or where Java or Maven is not installed."""
    if os.environ.get("CARILLON_TEST_WITHOUT_KAFKA") == "1":
        pytest.skip("CARILLON_TEST_WITHOUT_KAFKA=1: not run on a real Kafka broker")
    for program in ("java", "mvn"):
        needed(program)


@contextlib.contextmanager
def kafka(directory: Path, security: Security | None = None) -> Iterator[KafkaBroker]:
    """Run a broker for the caller alone.

    Where its files cannot be fetched the test fails, unless CARILLON_TEST_WITHOUT_KAFKA=1 allows skipping it.
    """
    skip_without_kafka()
    broker = KafkaBroker(directory, security)
    try:
        broker.start()
    except KafkaMissingError as error:
        pytest.fail(f"{error}; set CARILLON_TEST_WITHOUT_KAFKA=1 to leave these tests out", pytrace=False)
    try:
        yield broker
    finally:
        if broker.running:
            broker.stop()


def _accepts(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


async def _serves(bootstrap: str) -> bool:
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap, request_timeout_ms=5000)
    try:
        await admin.start()
        return bool((await admin.describe_cluster())["brokers"])
    except KafkaError:
        return False
    finally:
        await admin.close()


async def _delete_topics(bootstrap: str) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap, request_timeout_ms=20_000)
    await admin.start()
    try:
        async with asyncio.timeout(60):
            while topics := await admin.list_topics():
                await admin.delete_topics(topics)
                await asyncio.sleep(0.05)
    finally:
        await admin.close()
