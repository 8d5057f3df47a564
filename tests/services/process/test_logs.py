"""Logging: one JSON object a line, readable text on a terminal, and secrets on neither."""

import json
import logging
import os
import pty
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from services.process.logs import RepeatFilter

BOUND_S = 60

LINES = """
import logging, sys
from services.process.logs import configure, logger
configure("INFO")
logger.info("a device came", token="t-1", number=3, name="设备", data=b"raw")
logger.debug("not shown")
logging.getLogger("somebody.else").warning("two\\nlines of %s", "theirs")
logging.getLogger("httpx").info("HTTP Request: POST https://push.example/3/device/canary-7f3a")
try:
    raise ValueError("wrong\\nvalue")
except ValueError as error:
    logger.error("it failed", exc_info=error)
    logging.getLogger("somebody.else").exception("theirs failed")
"""

OF_A_DEVICE = """
from services.process.logs import configure, logger
configure("INFO")
logger.info("refused", token="t\\x1b[2J\\x9b\\u202e\\nforged")
"""

UNCAUGHT = """
import threading, warnings
from services.process.logs import configure
configure("WARNING")
import asyncio, logging
warnings.warn("soon gone")
logging.getLogger("somebody.else").error("a number: %d", "seven")

class Broken:
    def __del__(self):
        raise ValueError("at the end")

Broken()
thread = threading.Thread(target=lambda: 1 / 0, name="worker")
thread.start()
thread.join()

async def nobody_awaits():
    raise KeyError("canary")

async def main():
    asyncio.create_task(nobody_awaits())
    await asyncio.sleep(0)
    await asyncio.sleep(0)

asyncio.run(main())
raise LookupError("uncaught")
"""

FOREIGN_HANDSHAKE = """
import asyncio, sys
from pathlib import Path
from services.process.logs import configure
configure("INFO")
from services.net.rpc.server import serve
from services.net.rpc.tls import Tls
from testkit.certificates import Authority
from testkit.ports import free_ports

async def main(directory):
    (port,) = free_ports(1)
    server = serve([f"127.0.0.1:{port}"], Authority(Path(directory)).issue("registry"))
    await server.start()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET / HTTP/1.0\\r\\n\\r\\n")
    await reader.read()
    writer.close()
    await server.stop(0)

asyncio.run(main(sys.argv[1]))
"""

FAILED_CALLS = """
import asyncio, logging, sys
from services.process.logs import configure, logger
from services.net.rpc.local import LocalServer
from services.net.rpc.channel import connect
from services.net.rpc.server import serve
from services.errors import CarillonError
from protos.registry.v1.registry_pb2 import CreateAppRequest, GetDevicesRequest
from protos.registry.v1.registry_pb2_grpc import *

class Registry(RegistryServiceServicer):
    async def CreateApp(self, request, context):
        secret_key = request.name
        return {}[1]

    async def GetDevices(self, request, context):
        token = request.tokens[0]
        return "not a response"

async def ask(channel):
    stub = RegistryServiceStub(channel)
    for call, request in (
        (stub.CreateApp, CreateAppRequest(name="canary-7f3a")),
        (stub.GetDevices, GetDevicesRequest(appkey="1", tokens=["canary-7f3a"])),
    ):
        try:
            await call(request)
        except CarillonError as error:
            logger.warning("the caller sees", error=str(error))

async def main(directory):
    local = LocalServer()
    outside = serve([f"unix:{directory}/s"])
    for server in (local, outside):
        add_RegistryServiceServicer_to_server(Registry(), server)
    await outside.start()
    channel = connect(f"unix:{directory}/s")
    await ask(local.channel())
    await ask(channel)
    await channel.close()
    await outside.stop(0)

configure("DEBUG")
asyncio.run(main(sys.argv[1]))
"""


def written_to_file(code: str, *arguments: str, ends_with: int = 0) -> str:
    """Run the code in a process whose standard error is not a terminal; return what it writes there."""
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], stderr=subprocess.PIPE, text=True, timeout=BOUND_S, check=False
    )
    assert done.returncode == ends_with, done.stderr
    return done.stderr


def written_to_terminal(code: str, *arguments: str) -> str:
    """Run the code in a process whose standard error is a terminal; return what it writes there."""
    ours, theirs = pty.openpty()
    chunks: list[bytes] = []
    reading = threading.Thread(target=_drain, args=(ours, chunks))
    reading.start()
    try:
        subprocess.run([sys.executable, "-c", code, *arguments], stderr=theirs, timeout=BOUND_S, check=True)
    finally:
        os.close(theirs)
        reading.join(BOUND_S)
        os.close(ours)
    return b"".join(chunks).decode()


def _drain(terminal: int, chunks: list[bytes]) -> None:
    try:
        while chunk := os.read(terminal, 65536):
            chunks.append(chunk)
    except OSError:
        """The other end was closed, which Linux reports as EIO."""


def test_off_a_terminal_every_line_is_one_json_object() -> None:
    lines: list[dict[str, Any]] = [json.loads(line) for line in written_to_file(LINES).splitlines()]
    assert [line["event"] for line in lines] == [
        "a device came",
        "two\nlines of theirs",
        "it failed",
        "theirs failed",
    ]
    assert [line["level"] for line in lines] == ["info", "warning", "error", "error"]
    assert all(line["timestamp"].endswith("Z") for line in lines)
    assert (lines[0]["token"], lines[0]["number"], lines[0]["name"]) == ("t-1", 3, "设备")
    assert lines[2]["exception"].endswith("ValueError: wrong\nvalue")
    assert lines[3]["exception"].endswith("ValueError: wrong\nvalue")


def test_warnings_and_errors_that_nobody_catches_are_json_too() -> None:
    lines = [json.loads(line) for line in written_to_file(UNCAUGHT, ends_with=1).splitlines()]
    warning, unformatted, unraisable, in_thread, in_task, last = lines
    assert (warning["level"], warning["logger"]) == ("warning", "py.warnings")
    assert "UserWarning: soon gone" in warning["event"]
    assert unformatted["event"] == "a message cannot be formatted: 'a number: %d'"
    assert unraisable["exception"].endswith("ValueError: at the end")
    assert (in_thread["thread"], in_thread["exception"].splitlines()[-1]) == (
        "worker",
        "ZeroDivisionError: division by zero",
    )
    assert (in_task["logger"], in_task["exception"].splitlines()[-1]) == ("asyncio", "KeyError: 'canary'")
    assert (last["level"], last["exception"].splitlines()[-1]) == ("critical", "LookupError: uncaught")


def test_a_handshake_that_fails_adds_no_line_of_another_form(tmp_path: Path) -> None:
    assert written_to_file(FOREIGN_HANDSHAKE, str(tmp_path / "tls")) == ""


def test_what_a_device_wrote_does_not_control_the_terminal() -> None:
    line = written_to_file(OF_A_DEVICE)
    assert json.loads(line)["token"] == "t\x1b[2J\x9b\u202e\nforged"
    assert line.rstrip("\n").isprintable()
    shown = written_to_terminal(OF_A_DEVICE)
    assert "t\\u001b[2J\\u009b\\u202e\\nforged" in shown


def test_on_a_terminal_lines_are_readable_text() -> None:
    text = written_to_terminal(LINES)
    assert "a device came" in text
    assert "ValueError: wrong" in text
    assert not text.lstrip().startswith("{")
    of_a_role = written_to_terminal(LINES.replace('"INFO"', '"INFO", text_on_terminal=False'))
    assert all(json.loads(line) for line in of_a_role.splitlines())
    assert "canary" not in text


@pytest.mark.parametrize("written", [written_to_file, written_to_terminal], ids=["to a file", "to a terminal"])
def test_a_failed_call_is_logged_without_its_request(written: Any, tmp_path: Any) -> None:
    """Neither in the traceback, nor in its variables, nor in debug messages of libraries."""
    text = written(FAILED_CALLS, str(tmp_path))
    assert text.count("a call failed") >= 2
    assert "CreateApp" in text
    assert "canary" not in text


def test_repeated_messages_of_a_library_are_rate_limited() -> None:
    now_s = [0.0]
    repeats = RepeatFilter("aiokafka", lambda: now_s[0])

    def heard(name: str, text: str, *values: object) -> str | None:
        record = logging.LogRecord(name, logging.WARNING, "", 0, text, values, None)
        return record.getMessage() if repeats.filter(record) else None

    assert heard("aiokafka.conn", "no way to node %s", 1) == "no way to node 1"
    assert heard("aiokafka.conn", "no way to node %s", 2) is None
    assert heard("aiokafka", "another %s", "thing") == "another thing"
    assert heard("aiokafkas", "no way to node %s", 3) == heard("aiokafkas", "no way to node %s", 3) is not None
    now_s[0] = 9.9
    assert heard("aiokafka.conn", "no way to node %s", 1) is None
    now_s[0] = 10.0
    assert heard("aiokafka.conn", "no way to node %s", 4) == "no way to node 4 (2 more like this were left out)"
    assert heard("aiokafka.conn", "no way to node %s", 4) is None
