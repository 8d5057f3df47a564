"""`carillon apns-simulator`: the simulator of Apple's push service as a separate process."""

import contextlib
from collections.abc import Callable
from pathlib import Path

import click
import msgspec
import uvloop

from carillon.commands.output import say
from services.apns_simulator.script import Behaviour, script_table
from services.apns_simulator.server import ApnsSimulator
from services.process.clock import Clock, SystemClock
from services.process.runner import run
from services.push_simulator.certificates import SelfSigned
from services.push_simulator.connection import HttpRequest

_TABLE = f"""\b
The first characters of a device token select the answer to its pushes. With `c` in place of the first `e`, only the
first push to the token gets that answer. Pushes to all other tokens are accepted.

\b
{script_table()}"""


@click.command("apns-simulator", epilog=_TABLE)
@click.option("--host", default="127.0.0.1", show_default=True, help="An IP address.")
@click.option("--port", type=click.IntRange(0, 65535), default=8443, show_default=True, help="0: any free port.")
@click.option(
    "--authority",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the certificate to this PEM file, for clients to trust.",
)
@click.option(
    "--key",
    "keys",
    multiple=True,
    type=(str, str, click.Path(exists=True, dir_okay=False, path_type=Path)),
    metavar="TEAM KEY_ID FILE",
    help="A team's public key as PEM. Without any, every provider token is accepted.",
)
@click.option("--topic", "topics", multiple=True, help="An existing bundle id. Without any, all exist.")
@click.option(
    "--streams",
    type=click.IntRange(1, 10_000),
    default=1000,
    show_default=True,
    help="Concurrent streams of a connection after its first accepted push.",
)
@click.option(
    "--first-streams",
    type=click.IntRange(1, 10_000),
    default=1,
    show_default=True,
    help="Concurrent streams before its first accepted push.",
)
@click.option("--latency-ms", type=click.IntRange(0, 60_000), default=0, show_default=True, help="Delay of responses.")
@click.option(
    "--window",
    type=click.IntRange(1, 2**31 - 1),
    default=65_535,
    show_default=True,
    help="Initial flow-control window of a stream, in bytes.",
)
@click.option(
    "--goodbye-every",
    "goaway_every",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    help="Send GOAWAY after this number of pushes of a connection; 0: never.",
)
@click.option("--json", "as_json", is_flag=True, help="Print each push as a line of JSON.")
def apns_simulator(
    host: str,
    port: int,
    authority: Path | None,
    keys: tuple[tuple[str, str, Path], ...],
    topics: tuple[str, ...],
    streams: int,
    first_streams: int,
    latency_ms: int,
    window: int,
    goaway_every: int,
    as_json: bool,
) -> None:
    """Simulate Apple's push service on this machine, with TLS and HTTP/2, and print the pushes it gets."""
    clock = SystemClock()
    behaviour = Behaviour(streams, first_streams, latency_ms, window, goaway_every, topics=frozenset(topics))
    try:
        simulator = ApnsSimulator(clock, host, port, behaviour, SelfSigned.make(host))
        for team_id, key_id, file in keys:
            simulator.keys.register(team_id, key_id, file.read_text())
    except ValueError as error:
        raise click.ClickException(f"invalid options: {error}") from None
    simulator.on_push = _printer(clock, as_json)
    if authority is not None:
        authority.write_text(simulator.authority)
    with contextlib.suppress(KeyboardInterrupt):
        uvloop.run(_serve(simulator))


async def _serve(simulator: ApnsSimulator) -> None:
    try:
        await run([simulator], on_ready=lambda: say(f"ready at {simulator.url}", err=True))
    except OSError as error:
        raise click.ClickException(f"{simulator.url}: {error.strerror or error}") from None


def _printer(clock: Clock, as_json: bool) -> Callable[[HttpRequest, str, str], None]:
    def show(request: HttpRequest, status: str, reason: str) -> None:
        line = _line(request, clock.now_ms(), status, reason)
        say(msgspec.json.encode(line).decode() if as_json else _text(line))

    return show


def _line(request: HttpRequest, time_ms: int, status: str, reason: str) -> dict[str, object]:
    """Return one push as a JSON object, without the authorization header, which is a secret."""
    path = request.header(":path") or ""
    return {
        "time_ms": time_ms,
        "token": path.removeprefix("/3/device/"),
        "status": int(status) if status else None,
        "reason": reason,
        "headers": {name: value for name, value in request.headers if name.startswith("apns-")},
        "payload": _payload(bytes(request.body)),
    }


def _payload(body: bytes) -> object:
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return body.decode(errors="replace")


def _text(line: dict[str, object]) -> str:
    outcome = f"{line['status'] or 'no answer'} {line['reason']}".rstrip()
    return f"{line['token']}  {outcome}  {msgspec.json.encode(line['payload']).decode()}"
