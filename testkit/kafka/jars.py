"""The jars of the Kafka broker and of its tools, copied once into `.cache` (git-ignored) by Maven."""

import fcntl
import os
import shutil
from pathlib import Path

from testkit.maven import maven
from testkit.repository import ROOT

_CACHE = ROOT / ".cache"
_BROKER = ("kafka", "pom.xml", "kafka_2.13-*.jar")
_TOOLS = ("kafka-tools", "tools-pom.xml", "kafka-tools-*.jar")
_BOUND_S = 600


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
    arguments = ["-f", str(pom), "dependency:copy-dependencies", "-DincludeScope=runtime"]
    if said := maven([*arguments, f"-DoutputDirectory={partial}"], ROOT, _BOUND_S):
        raise KafkaMissingError(f"Maven did not get the Kafka broker:\n{said}")
    partial.rename(jars)
