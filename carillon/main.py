"""The `carillon` command. The only file that knows every role."""

import asyncio
import contextlib
import importlib
import json
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import click
import uvloop

from carillon import replay as replaying
from carillon.commands.connect import SOCKET
from carillon.replay import REPLAYED
from carillon.welcome import Door, Welcome
from services.domain.role_context import DEFAULT_ADDRESSES, connected_peers, role_addresses, role_context
from services.domain.topics import TOPICS
from services.runtime.errors import CarillonError
from services.runtime.http.operations import Operations
from services.runtime.process import data_directory as datadir
from services.runtime.process import garbage_collection
from services.runtime.process.logs import configure
from services.runtime.process.runner import run
from services.runtime.process.settings import Settings, environment, load
from services.runtime.rpc.peers import Peers
from services.runtime.rpc.transport import LocalServer, Server, serve

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
    "apns-simulator": "carillon.commands.apns_simulator",
    "app": "carillon.commands.app",
    "audit": "carillon.commands.audit",
    "device": "carillon.commands.device",
    "send": "carillon.commands.send",
    "sign": "carillon.commands.sign",
}

_PRIVATE = 0o077
"""What a running service writes, its sockets too, is for its owner alone."""


class Commands(click.Group):
    """Imports a command when it is asked for: a short one need not wait for what every role brings along."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted([*super().list_commands(ctx), *COMMANDS])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in COMMANDS:
            command: click.Command = getattr(importlib.import_module(COMMANDS[cmd_name]), cmd_name.replace("-", "_"))
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
@click.option("--until", metavar="TIME", help="Build the state as it was then, an ISO 8601 date-time; needs --into.")
@click.option(
    "--into", type=click.Path(path_type=Path), metavar="DIR", help="Where the state of --until goes: a new directory."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def replay_role(role: str, verify: bool, until: str | None, into: Path | None, as_json: bool) -> None:
    """Rebuild a role's state from the log. Nothing is ever sent.

    Without options the rebuilt state takes the live one's place, and the service must be stopped. With --verify or
    --until it may run: its state is left as it is.

    --until TIME reads each partition of the log up to its first record that was made later. TIME is in
    CARILLON_TIMEZONE unless it names an offset of its own. The state goes into DIR, to be looked into, and its digest
    is printed; it never takes the live state's place, and cannot be compared with it.
    """
    if (until is None) != (into is None):
        raise click.UsageError("--until and --into go together: a state of the past does not take the live one's place")
    if verify and until is not None:
        raise click.UsageError("--verify compares with the live state, which cannot be taken back to an earlier moment")
    with _plain_errors(), replaying.bar(shown=not as_json) as steps:
        settings = load(wiring(role).SETTINGS, environment())
        if until is None or into is None:
            work = replaying.replayed(role, settings, wiring, verify=verify, steps=steps)
        else:
            then = replaying.moment(until, settings)
            work = replaying.replayed_until(role, settings, wiring, until=then, into=into, steps=steps)
        answer = uvloop.run(work)
    click.echo(json.dumps(answer) if as_json else "\n".join(f"{name}: {value}" for name, value in answer.items()))
    sys.exit(0 if answer.get("equal", True) else 1)


async def _up(settings: Settings, roles: Mapping[str, Any]) -> None:
    servers = {name: LocalServer() for name in ROLES}
    peers = Peers({name: [server.channel()] for name, server in servers.items()}, TOPICS)
    async with role_context(settings, peers) as context:
        socket = settings.data.absolute() / SOCKET
        outside = serve([f"unix:{socket}"])
        built = [wiring(name).build(role_settings, context) for name, role_settings in roles.items()]
        for role in built:
            for add in role.servicers:
                add(cast(Server, servers[role.name]))
            for add in role.servicers[:1]:
                add(outside)
        operations = Operations(settings.host, settings.console_port)
        welcome = Welcome(context, _doors(settings, roles))
        of_roles = [service for role in built for service in role.services]
        listening = RpcListener("the commands' socket", outside)
        await run([operations, *of_roles, listening, welcome], on_ready=lambda: _ready(operations))


async def _serve(role: str, settings: Settings, env: Mapping[str, str]) -> None:
    async with role_context(settings, connected_peers(env, settings.tls())) as context:
        built = wiring(role).build(settings, context)
        operations = Operations(settings.host, settings.console_port)
        doors = []
        if role in DEFAULT_ADDRESSES:
            server = serve([_own_address(role, settings, env)], settings.tls())
            for add in built.servicers:
                add(server)
            doors = [RpcListener(f"{role} calls", server)]
        await run([operations, *built.services], on_ready=lambda: _ready(operations), doors=doors)


def _doors(settings: Settings, roles: Mapping[str, Any]) -> list[Door]:
    edge, gateway = roles["edge"], roles["gateway"]
    return [
        Door("app servers, v2", "http", settings.host, edge.v2_port, "/v2/push"),
        Door("legacy Android", "http", settings.host, edge.android_port, "/push"),
        Door("legacy iOS", "http", settings.host, edge.ios_port, "/push"),
        Door("devices", gateway.scheme, settings.host, gateway.gateway_port, "/device/v1"),
        Door("health and metrics", "http", settings.host, settings.console_port, "/healthz"),
    ]


def _ready(operations: Operations) -> None:
    garbage_collection.freeze_startup_objects()
    operations.set_ready()


def _own_address(role: str, settings: Settings, env: Mapping[str, str]) -> str:
    listed = role_addresses(role, env)
    if len(listed) != settings.shards:
        raise CarillonError(
            f"CARILLON_{role.upper()}_ADDR names {len(listed)} instances, but CARILLON_SHARDS is {settings.shards}"
        )
    return listed[settings.shard]


class RpcListener:
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


@contextlib.contextmanager
def _plain_errors() -> Iterator[None]:
    """An error a person can act on ends the command with its one line, not with a traceback."""
    try:
        yield
    except CarillonError as error:
        raise click.ClickException(str(error)) from None
