"""The jars of the Kafka broker and of its tools, copied once into `.cache` (git-ignored) by Maven.

Maven's own configuration says from which repositories.
"""

import fcntl
import os
import shutil
import subprocess
from pathlib import Path

from testkit.repository import ROOT

_CACHE = ROOT / ".cache"
_BROKER = ("kafka", "pom.xml", "kafka_2.13-*.jar")
_TOOLS = ("kafka-tools", "tools-pom.xml", "kafka-tools-*.jar")


class KafkaMissingError(RuntimeError):
    """Java or Maven is not installed, or the broker's jars could not be downloaded."""


def kafka_jars() -> Path:
    """Return the folder with the broker's jars, filled by Maven the first time."""
    return _folder(*_BROKER)


def kafka_tools_jars() -> Path:
    """Return the folder with the jar of the command-line tools that are not in the broker's; it needs those, too."""
    return _folder(*_TOOLS)


def _folder(name: str, pom: str, sought: str) -> Path:
    for program in ("java", "mvn"):
        if shutil.which(program) is None:
            raise KafkaMissingError(f"`{program}` is not installed: a real Kafka broker needs Java 17 and Maven")
    jars = _CACHE / name
    jars.parent.mkdir(exist_ok=True)
    with jars.with_name(f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not any(jars.glob(sought)):
            _get_jars(jars, Path(__file__).with_name(pom))
    return jars


def _get_jars(jars: Path, pom: Path) -> None:
    partial = jars.with_name(f"{jars.name}.{os.getpid()}")
    command = ["mvn", "-q", "-B", "-f", str(pom), "dependency:copy-dependencies"]
    result = subprocess.run(
        [*command, "-DincludeScope=runtime", f"-DoutputDirectory={partial}"],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    if result.returncode:
        raise KafkaMissingError(f"Maven did not get the Kafka broker:\n{result.stdout[-2000:]}{result.stderr[-2000:]}")
    partial.rename(jars)
