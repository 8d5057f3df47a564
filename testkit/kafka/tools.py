"""Kafka's command-line tools, as an operator has them in the PATH, from the jars of the tests' broker."""

import os
import subprocess
from pathlib import Path

from testkit.kafka.jars import kafka_jars, kafka_tools_jars

_CLASSES = {
    "kafka-acls.sh": "org.apache.kafka.tools.AclCommand",
    "kafka-topics.sh": "org.apache.kafka.tools.TopicCommand",
    "kafka-configs.sh": "kafka.admin.ConfigCommand",
    "kafka-reassign-partitions.sh": "org.apache.kafka.tools.reassign.ReassignPartitionsCommand",
}
_SCRIPT = """\
#!/bin/sh
classes=-XX:SharedArchiveFile={archive}
[ -f {archive} ] || classes=-XX:ArchiveClassesAtExit={archive}
exec java $classes -Xlog:disable -Xmx128m -XX:+UseSerialGC -XX:TieredStopAtLevel=1 -cp "{jars}" {tool} "$@"
"""


def run_with_kafka_tools(command: str, directory: Path) -> str:
    """Run a shell command that calls Kafka's tools; return what it prints. `directory` gets the tools' scripts."""
    directory.mkdir(exist_ok=True)
    jars = f"{kafka_jars()}/*:{kafka_tools_jars()}/*"
    for name, of_tool in _CLASSES.items():
        script = directory / name
        # A tool's first run archives its classes, and its many later runs map them, which saves CPU time.
        archive = directory / f"{name}.jsa"
        script.write_text(_SCRIPT.format(archive=archive, jars=jars, tool=of_tool))
        script.chmod(0o755)
    env = {**os.environ, "PATH": f"{directory}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(["sh", "-c", command], env=env, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
