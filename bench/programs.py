"""Child processes of a benchmark: compiles them, pins each to a core, sends them commands as lines, and ends them."""

import os
import resource
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import psutil

from services.gateway.rules import process_capacity


class Program:
    """A child process that answers each line on its standard input with a line of integers.

    It runs on the core with this number, modulo the number of cores; None: on any core.
    """

    def __init__(
        self, command: Sequence[str], core: int | None, env: dict[str, str] | None = None, quiet: bool = False
    ) -> None:
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL if quiet else subprocess.PIPE,
            stderr=subprocess.DEVNULL if quiet else None,
            env={**os.environ, **(env or {})},
            text=True,
            bufsize=1,
        )
        if core is not None:
            cores = sorted(os.sched_getaffinity(0))
            os.sched_setaffinity(self.process.pid, {cores[core % len(cores)]})

    def send(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")

    def receive(self) -> list[int]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self.process.args!r} ended")
        return [int(word) for word in line.split()]

    def request(self, line: str) -> list[int]:
        self.send(line)
        return self.receive()

    def resident_bytes(self) -> int:
        return int(psutil.Process(self.process.pid).memory_info().rss)

    def cpu_s(self) -> float:
        """Return the CPU time of the program, the kernel's for it included, in steps of 10 ms."""
        return sum(self.user_and_kernel_s())

    def user_and_kernel_s(self) -> tuple[float, float]:
        """Return the CPU time of the program itself, and that of the kernel for it."""
        times = psutil.Process(self.process.pid).cpu_times()
        return float(times.user), float(times.system)

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.terminate()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class Built:
    """The C programs of bench/native, compiled into a directory. `has_tls`: OpenSSL's headers are installed."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.has_tls = self._compile("floor", "-DTLS") and self._compile("clients", "-DTLS")
        if not self.has_tls and not (self._compile("floor") and self._compile("clients")):
            raise SystemExit("the benchmark's C programs do not compile: is gcc installed?")

    def path(self, name: str) -> str:
        return str(self._directory / name)

    def _compile(self, name: str, *options: str) -> bool:
        source = Path(__file__).parent / "native" / f"{name}.c"
        libraries = ["-lssl", "-lcrypto"] if options else []
        command = ["gcc", "-O2", *options, "-o", self.path(name), str(source), *libraries]
        return subprocess.run(command, capture_output=bool(options), check=False).returncode == 0

    @contextmanager
    def clients(
        self,
        port: int,
        records: Sequence[bytes],
        marker: bytes,
        at_once: int,
        *,
        tls: bool = False,
        polls: bool = False,
    ) -> Iterator[tuple[Program, list[int]]]:
        """Start the clients on core 1: one connection for each record, which it sends first.

        `polls`: they never sleep while they connect, for a server that is one process on another core. Devices are on
        other machines, and here the server would pay for each time that the clients wake up.

        With the program come four times in ns: the first connection began, the last was open, and the median and the
        99th percentile of the time that one took to open.
        """
        with tempfile.NamedTemporaryFile(dir=self._directory) as file:
            file.write(b"".join(struct.pack("=I", len(record)) + record for record in records))
            file.flush()
            options = [*(["poll"] if polls else []), *(["tls"] if tls else [])]
            arguments = [str(port), str(len(records)), file.name, marker.hex(), str(at_once), *options]
            program = Program([self.path("clients"), *arguments], core=1)
            try:
                yield program, program.receive()
            finally:
                program.close()


def check_open_files(connections: int) -> None:
    """Raise the limit of open files to its maximum; SystemExit when that is too low for this number of connections."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    most = process_capacity(hard, None).connections
    if connections > most:
        raise SystemExit(
            f"{connections:,} connections are too many: this host allows {hard:,} open files a process (`ulimit -Hn`),"
            f" with which the gateway accepts {most:,} connections"
        )


def note(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def installed(name: str) -> str | None:
    return shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin:/usr/local/sbin")


def connected(port: int) -> socket.socket:
    """Connect to a server that may still be starting."""
    for _ in range(200):
        try:
            return socket.create_connection(("127.0.0.1", port))
        except ConnectionRefusedError:
            time.sleep(0.05)
    raise RuntimeError(f"nothing listens on port {port}")
