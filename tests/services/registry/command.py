"""Runs the operator's commands within the test's process."""

import asyncio
import json
import os
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from click.testing import CliRunner

from carillon.main import main

_BOUND_S = 60


class Outcome(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.out.splitlines()]


Carillon = Callable[..., Awaitable[Outcome]]


async def run(data_dir: str, *arguments: str, group: str = "app") -> Outcome:
    """Run the command in a thread of this process, with an event loop of its own."""
    env: dict[str, str | None] = {name: None for name in os.environ if name.startswith("CARILLON_")}
    env |= {"CARILLON_DATA_DIR": data_dir, "COLUMNS": "200", "LC_ALL": "C.UTF-8"}
    running = asyncio.to_thread(CliRunner().invoke, main, [group, *arguments], prog_name="carillon", env=env)
    result = await asyncio.wait_for(running, _BOUND_S)
    return Outcome(result.exit_code, result.stdout, result.stderr)
