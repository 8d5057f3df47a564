"""How the operators' commands find the running service: its socket in the data directory, or a role's address."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import click

from services.runtime.config import Settings, addresses, environment, load
from services.runtime.errors import CarillonError, UnavailableError
from services.runtime.rpc import Channel, connect

SOCKET = "carillon.sock"
Answer = TypeVar("Answer")


def reach(role: str, call: Callable[[Channel], Awaitable[Answer]]) -> Answer:
    """Call one role of the running service; click.ClickException with a sentence that says what to do."""
    env = environment()
    try:
        settings = load(Settings, env)
        socket = settings.data / SOCKET
        address = next(iter(addresses(role, env)), None) or f"unix:{socket.absolute()}"
        return asyncio.run(_call(address, settings, call))
    except UnavailableError as error:
        raise click.ClickException(
            f"no {role} answers at {address}: {error}\nStart `carillon up` first, or set CARILLON_DATA_DIR to its"
            f" data directory (now {settings.data_dir}), or CARILLON_{role.upper()}_ADDR to the role's address."
        ) from None
    except CarillonError as error:
        raise click.ClickException(str(error)) from None


async def _call(address: str, settings: Settings, call: Callable[[Channel], Awaitable[Answer]]) -> Answer:
    channel = connect(address, settings.tls())
    try:
        return await call(channel)
    finally:
        await channel.close()
