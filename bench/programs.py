"""Programs of a benchmark run: built, kept on one core each, told lines, and ended."""

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

from services.gateway.decide import capacity


class Program:
    """A child on one core (counted from 0, round the cores there are; None: on any) that is told lines and answers each
    with one."""

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

    def tell(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")

    def hear(self) -> list[int]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self.process.args!r} ended")
        return [int(word) for word in line.split()]

    def ask(self, line: str) -> list[int]:
        self.tell(line)
        return self.hear()

    def resident_bytes(self) -> int:
        return int(psutil.Process(self.process.pid).memory_info().rss)

    def cpu_s(self) -> float:
        """Of the program and the kernel for it, in steps of 10 ms."""
        times = psutil.Process(self.process.pid).cpu_times()
        return float(times.user + times.system)

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
    """The C programs of this folder, compiled into a directory. `has_tls`: OpenSSL's headers are installed."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.has_tls = self._compile("floor", "-DTLS") and self._compile("clients", "-DTLS")
        if not self.has_tls and not (self._compile("floor") and self._compile("clients")):
            raise SystemExit("the benchmark's C programs do not compile: is gcc installed?")

    def path(self, name: str) -> str:
        return str(self._directory / name)

    def _compile(self, name: str, *options: str) -> bool:
        source = Path(__file__).with_name(f"{name}.c")
        libraries = ["-lssl", "-lcrypto"] if options else []
        command = ["gcc", "-O2", *options, "-o", self.path(name), str(source), *libraries]
        return subprocess.run(command, capture_output=bool(options), check=False).returncode == 0

    @contextmanager
    def clients(
        self, port: int, records: Sequence[bytes], marker: bytes, at_once: int, tls: bool = False
    ) -> Iterator[tuple[Program, list[int]]]:
        """One connection a record, on core 1; with when the first began, when the last was open, and the half and 99th
        hundredth of how long one took, in ns."""
        with tempfile.NamedTemporaryFile(dir=self._directory) as file:
            file.write(b"".join(struct.pack("=I", len(record)) + record for record in records))
            file.flush()
            arguments = [str(port), str(len(records)), file.name, marker.hex(), str(at_once), *(["tls"] if tls else [])]
            program = Program([self.path("clients"), *arguments], core=1)
            try:
                yield program, program.hear()
            finally:
                program.close()


def check_open_files(connections: int) -> None:
    """Raise the limit of this process and its children as far as it goes; end the program when that is too low."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    most = capacity(hard, None).connections
    if connections > most:
        raise SystemExit(
            f"{connections:,} connections are too many: this host allows {hard:,} open files a process (`ulimit -Hn`),"
            f" with which the gateway takes {most:,} connections"
        )


def note(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def installed(name: str) -> str | None:
    return shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin:/usr/local/sbin")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def connected(port: int) -> socket.socket:
    """A connection to a server that is still starting."""
    for _ in range(200):
        try:
            return socket.create_connection(("127.0.0.1", port))
        except ConnectionRefusedError:
            time.sleep(0.05)
    raise RuntimeError(f"nothing listens on port {port}")
