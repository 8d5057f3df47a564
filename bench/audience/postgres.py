"""A temporary PostgreSQL server from Debian's packages, called through psql."""

import os
import pwd
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

_SETTINGS = (
    "listen_addresses=",
    "shared_buffers=2GB",
    "effective_cache_size=8GB",
    "work_mem=256MB",
    "maintenance_work_mem=1GB",
    "max_wal_size=8GB",
    "random_page_cost=1.1",
    "fsync=off",
)
"""Everything in memory and no durability: PostgreSQL's fastest configuration."""


class PostgresMissingError(Exception):
    """PostgreSQL is not installed on this machine."""


class Postgres:
    """A running server behind a Unix socket in a temporary directory."""

    def __init__(self, directory: Path, user: str) -> None:
        self._command = ["psql", "-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-h", str(directory), "-U", user]
        self._command += ["-d", "postgres"]

    def run(self, sql: str) -> str:
        """Run statements in one session; returns what they print."""
        done = subprocess.run([*self._command, "-f", "-"], input=sql, text=True, capture_output=True, check=True)
        return done.stdout.strip()

    def copy(self, table: str, chunks: Iterable[bytes]) -> None:
        """Fill a table with chunks of COPY text."""
        with subprocess.Popen([*self._command, "-c", f"COPY {table} FROM STDIN"], stdin=subprocess.PIPE) as psql:
            assert psql.stdin is not None
            for chunk in chunks:
                psql.stdin.write(chunk)
        if psql.returncode:
            raise RuntimeError(f"COPY into {table} failed")

    def timed(self, before: str, question: str, rounds: int) -> tuple[str, list[float]]:
        """Run the query repeatedly in one session; return its result and the ms of each round as psql measures them."""
        script = f"{before}\n{question}\n{question}\n\\timing on\n" + f"{question}\n" * rounds
        lines = self.run(script).splitlines()
        times = [float(found[1]) for line in lines if (found := re.match(r"Time: ([\d.]+) ms", line))]
        return lines[0], times


@contextmanager
def postgres() -> Iterator[Postgres]:
    """Run a new server; it is stopped and deleted at the end. PostgresMissingError: it is not installed."""
    binaries = _binaries()
    owner = "postgres" if os.geteuid() == 0 else pwd.getpwuid(os.geteuid()).pw_name
    with tempfile.TemporaryDirectory(prefix="carillon-bench-") as name:
        directory = Path(name)
        if os.geteuid() == 0:
            shutil.chown(directory, owner)
        data = directory / "data"
        _run(owner, binaries / "initdb", "-D", data, "-U", owner, "-A", "trust", "-E", "UTF8", "--no-sync")
        options = " ".join(f"-c {setting}" for setting in (*_SETTINGS, f"unix_socket_directories={directory}"))
        _run(owner, binaries / "pg_ctl", "-D", data, "-o", options, "-l", directory / "log", "-w", "start")
        try:
            yield Postgres(directory, owner)
        finally:
            _run(owner, binaries / "pg_ctl", "-D", data, "-m", "immediate", "-w", "stop")


def _binaries() -> Path:
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"), key=lambda path: int(path.parts[-3]))
    on_path = shutil.which("postgres")
    if not found and not on_path:
        raise PostgresMissingError("PostgreSQL is not installed: apt install postgresql")
    return found[-1].parent if found else Path(str(on_path)).resolve().parent


def _run(owner: str, *command: object) -> None:
    user = owner if os.geteuid() == 0 else None
    subprocess.run([str(part) for part in command], user=user, check=True, stdout=subprocess.DEVNULL, cwd="/")
