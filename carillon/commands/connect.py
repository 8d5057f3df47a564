"""How the operators' commands find the running service: its socket in the data directory, or a role's address."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import click

from services.runtime.errors import CarillonError, UnavailableError
from services.runtime.process.settings import Settings, addresses, environment, load
from services.runtime.rpc.channel import Channel, connect

SOCKET = "carillon.sock"
Answer = TypeVar("Answer")


def reach(role: str, call: Callable[[Channel], Awaitable[Answer]]) -> Answer:
    """Call one role of the running service; click.ClickException with a sentence that says what to do."""
    return reach_all(role, lambda channels: call(channels[0]))


def reach_all(role: str, call: Callable[[Sequence[Channel]], Awaitable[Answer]]) -> Answer:
    """As `reach`, for a call to every instance of the role."""
    env = environment()
    try:
        settings = load(Settings, env)
        socket = settings.data / SOCKET
        places = addresses(role, env) or [f"unix:{socket.absolute()}"]
        return asyncio.run(_call(places, settings, call))
    except UnavailableError as error:
        raise click.ClickException(
            f"no {role} answers at {', '.join(places)}: {error}\nStart `carillon up` first, or set CARILLON_DATA_DIR to"
            f" its data directory (now {settings.data_dir}), or CARILLON_{role.upper()}_ADDR to the role's address."
        ) from None
    except CarillonError as error:
        raise click.ClickException(str(error)) from None


async def _call(
    places: Sequence[str], settings: Settings, call: Callable[[Sequence[Channel]], Awaitable[Answer]]
) -> Answer:
    channels = [connect(place, settings.tls()) for place in places]
    try:
        return await call(channels)
    finally:
        for channel in channels:
            await channel.close()
