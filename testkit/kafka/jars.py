"""The jars of the Kafka broker, copied once into `.cache/kafka` (git-ignored) by Maven.

Where they come from is Maven's own configuration.
"""

import fcntl
import os
import shutil
import subprocess
from pathlib import Path

from testkit.repository import ROOT

_JARS = ROOT / ".cache" / "kafka"
_POM = Path(__file__).with_name("pom.xml")


class KafkaMissingError(RuntimeError):
    """Java or Maven is not installed, or the broker's jars could not be downloaded."""


def kafka_jars() -> Path:
    """Return the folder with the broker's jars, filled by Maven the first time."""
    for program in ("java", "mvn"):
        if shutil.which(program) is None:
            raise KafkaMissingError(f"`{program}` is not installed: a real Kafka broker needs Java 17 and Maven")
    _JARS.parent.mkdir(exist_ok=True)
    with _JARS.with_name("kafka.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not any(_JARS.glob("kafka_2.13-*.jar")):
            _get_jars()
    return _JARS


def _get_jars() -> None:
    partial = _JARS.with_name(f"kafka.{os.getpid()}")
    command = ["mvn", "-q", "-B", "-f", str(_POM), "dependency:copy-dependencies"]
    result = subprocess.run(
        [*command, "-DincludeScope=runtime", f"-DoutputDirectory={partial}"],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    if result.returncode:
        raise KafkaMissingError(f"Maven did not get the Kafka broker:\n{result.stdout[-2000:]}{result.stderr[-2000:]}")
    partial.rename(_JARS)
