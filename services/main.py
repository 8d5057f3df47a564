"""The `carillon` command. The only file that knows every role."""

import asyncio
import contextlib
import functools
import importlib
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any, cast

import click
import uvloop
from rich.console import Console
from rich.progress import Progress, TextColumn, TimeElapsedColumn

from edge.cli.reach import SOCKET
from services.runtime import datadir, memory, replay
from services.runtime.config import Settings, environment, load
from services.runtime.errors import CarillonError
from services.runtime.log import Log, Partition
from services.runtime.logs import configure
from services.runtime.operations import Operations
from services.runtime.peers import Peers
from services.runtime.rpc import LocalServer, Server, serve
from services.runtime.runner import run
from services.runtime.surroundings import DEFAULT_ADDRESSES, connected_peers, open_log, role_addresses, surroundings
from services.runtime.topics import TOPICS
from services.welcome import Door, Welcome

ROLES = {
    "registry": "services.registry.main",
    "targeting": "services.targeting.main",
    "delivery": "services.delivery.main",
    "scheduling": "services.scheduling.main",
    "analytics": "analytics.main",
    "gateway": "services.gateway.main",
    "edge": "edge.main",
}
"""Each role's wiring, in the order of starting: what stands behind a door is there before the door opens."""

COMMANDS = {
    "app": "edge.cli.app",
    "audit": "edge.cli.audit",
    "device": "edge.cli.device",
    "send": "edge.cli.send",
    "sign": "edge.cli.sign",
}

_PRIVATE = 0o077
"""What a running service writes, its sockets too, is for its owner alone."""

Ends = Mapping[Partition, int]
OnBatch = Callable[[int], None]
REPLAYED = ["registry", "targeting", "delivery", "scheduling", "analytics"]


class Commands(click.Group):
    """Imports a command when it is asked for: a short one need not wait for what every role brings along."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted([*super().list_commands(ctx), *COMMANDS])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in COMMANDS:
            command: click.Command = getattr(importlib.import_module(COMMANDS[cmd_name]), cmd_name)
            return command
        return super().get_command(ctx, cmd_name)


def wiring(role: str) -> Any:
    """The role's main module: SETTINGS, `build(settings, around)`, and what a replay needs."""
    return importlib.import_module(ROLES[role])


@click.group(cls=Commands)
@click.version_option(package_name="carillon")
def main() -> None:
    """Carillon: self-hosted push messaging. Start with `carillon up`."""
    configure("WARNING")


@main.command()
def up() -> None:
    """Run every role in this process, on the data directory (CARILLON_DATA_DIR, default ./data)."""
    os.umask(_PRIVATE)
    with _plain_errors():
        env = environment()
        settings = load(Settings, env)
        roles = {name: load(wiring(name).SETTINGS, env) for name in ROLES}
        configure(settings.log_level)
        with datadir.held(settings.data):
            uvloop.run(_up(settings, roles))


@main.command("serve")
@click.argument("role", type=click.Choice(list(ROLES)))
def serve_role(role: str) -> None:
    """Run one role. It reaches the others at CARILLON_<ROLE>_ADDR and the log at CARILLON_KAFKA_BOOTSTRAP."""
    os.umask(_PRIVATE)
    with _plain_errors():
        env = environment()
        settings = load(wiring(role).SETTINGS, env)
        if settings.kafka_bootstrap is None:
            raise CarillonError("set CARILLON_KAFKA_BOOTSTRAP: roles in processes of their own share a Kafka log")
        configure(settings.log_level)
        if role == "edge":
            importlib.import_module("edge.serve").run(env)
        else:
            with datadir.held(settings.state_dir(role), "running.lock"):
                uvloop.run(_serve(role, settings, env))


@main.command("replay")
@click.argument("role", type=click.Choice(REPLAYED))
@click.option("--verify", is_flag=True, help="Compare a rebuilt state with the live one and change nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def replay_role(role: str, verify: bool, as_json: bool) -> None:
    """Rebuild a role's state from the log; without --verify the service must be stopped. Nothing is ever sent."""
    with _plain_errors():
        env = environment()
        settings = load(wiring(role).SETTINGS, env)
        answer = uvloop.run(_replay(role, settings, verify))
    click.echo(json.dumps(answer) if as_json else "\n".join(f"{name}: {value}" for name, value in answer.items()))
    sys.exit(0 if answer.get("equal", True) else 1)


async def _up(settings: Settings, roles: Mapping[str, Any]) -> None:
    servers = {name: LocalServer() for name in ROLES}
    peers = Peers({name: [server.channel()] for name, server in servers.items()})
    async with surroundings(settings, peers) as around:
        socket = settings.data.absolute() / SOCKET
        outside = serve([f"unix:{socket}"])
        built = [wiring(name).build(role_settings, around) for name, role_settings in roles.items()]
        for role in built:
            for add in role.servicers:
                add(cast(Server, servers[role.name]))
            for add in role.servicers[:1]:
                add(outside)
        operations = Operations(settings.host, settings.console_port)
        welcome = Welcome(around, _doors(settings, roles))
        of_roles = [service for role in built for service in role.services]
        listening = RpcDoor("the commands' socket", outside)
        await run([operations, *of_roles, listening, welcome], on_ready=lambda: _ready(operations))


async def _serve(role: str, settings: Settings, env: Mapping[str, str]) -> None:
    async with surroundings(settings, connected_peers(env, settings.tls())) as around:
        built = wiring(role).build(settings, around)
        operations = Operations(settings.host, settings.console_port)
        doors = []
        if role in DEFAULT_ADDRESSES:
            server = serve([_own_address(role, settings, env)], settings.tls())
            for add in built.servicers:
                add(server)
            doors = [RpcDoor(f"{role} calls", server)]
        await run([operations, *doors, *built.services], on_ready=lambda: _ready(operations))


def _doors(settings: Settings, roles: Mapping[str, Any]) -> list[Door]:
    edge = roles["edge"]
    return [
        Door("app servers, v2", "http", settings.host, edge.v2_port, "/v2/push"),
        Door("legacy Android", "http", settings.host, edge.android_port, "/push"),
        Door("legacy iOS", "http", settings.host, edge.ios_port, "/push"),
        Door("devices", "ws", settings.host, roles["gateway"].gateway_port, "/device/v1"),
        Door("health and metrics", "http", settings.host, settings.console_port, "/healthz"),
    ]


def _ready(operations: Operations) -> None:
    memory.settle()
    operations.set_ready()


def _own_address(role: str, settings: Settings, env: Mapping[str, str]) -> str:
    listed = role_addresses(role, env)
    if len(listed) != settings.shards:
        raise CarillonError(
            f"CARILLON_{role.upper()}_ADDR names {len(listed)} instances, but CARILLON_SHARDS is {settings.shards}"
        )
    return listed[settings.shard]


class RpcDoor:
    """A gRPC server as a service."""

    def __init__(self, name: str, server: Server) -> None:
        self.name = name
        self._server = server

    async def run(self, ready: asyncio.Event) -> None:
        await self._server.start()
        ready.set()
        try:
            await asyncio.Event().wait()
        finally:
            await self._server.stop(grace=5)


async def _replay(role: str, settings: Settings, verify: bool) -> dict[str, Any]:
    with contextlib.nullcontext() if verify else _stopped(role, settings):
        log = await open_log(settings, read_only=True)
        try:
            return await _replayed(role, settings, log, verify)
        finally:
            await log.close()


def _stopped(role: str, settings: Settings) -> contextlib.AbstractContextManager[None]:
    """Hold what the running role holds: a rebuild takes its state's place."""
    if settings.kafka_bootstrap is None:
        return datadir.held(settings.data)
    return datadir.held(settings.state_dir(role), "running.lock")


async def _replayed(role: str, settings: Settings, log: Log, verify: bool) -> dict[str, Any]:
    everything = [
        Partition(topic.name, number)
        for topic in TOPICS.values()
        for number in range(topic.partitions(settings.partitions))
    ]
    ends = await log.ends(everything)
    with _progress(f"replaying {role}") as on_batch:
        if verify:
            verdict = await _verify(role, settings, log, ends, on_batch)
            return {"role": role, "equal": verdict.equal, **verdict._asdict()}
        return {"role": role, "digest": await _rebuild(role, settings, log, ends, on_batch)}


async def _rebuild(role: str, settings: Any, log: Log, ends: Ends, on_batch: OnBatch) -> str:
    if role == "analytics":
        digest: str = await wiring(role).rebuild(settings, log, ends, on_batch)
        return digest
    opened = functools.partial(wiring(role).open_state, settings)
    return await replay.rebuild(opened, settings.state_dir(role), log, ends, on_batch)


async def _verify(role: str, settings: Any, log: Log, ends: Ends, on_batch: OnBatch) -> replay.Verdict:
    if role == "analytics":
        verdict: replay.Verdict = await wiring(role).verify(settings, log, ends, on_batch)
        return verdict
    opened = functools.partial(wiring(role).open_state, settings)
    return await replay.verify(opened, settings.state_dir(role), log, ends, on_batch)


@contextlib.contextmanager
def _progress(title: str) -> Iterator[OnBatch]:
    """A running count of records on standard error, when a person looks."""
    columns = (TextColumn("{task.description}"), TextColumn("{task.completed:,.0f} records"), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task(title, total=None)
        yield lambda count: bar.advance(task, count)


@contextlib.contextmanager
def _plain_errors() -> Iterator[None]:
    """An error a person can act on ends the command with its one line, not with a traceback."""
    try:
        yield
    except CarillonError as error:
        raise click.ClickException(str(error)) from None
