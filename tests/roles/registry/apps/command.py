"""The operator's command as a process, and what it printed."""

import asyncio
import json
import os
import sys
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from tests.roles.registry.conftest import BOUND_S


class Outcome(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.out.splitlines()]


Carillon = Callable[..., Awaitable[Outcome]]


async def run(data_dir: str, *arguments: str, group: str = "app") -> Outcome:
    env = {name: value for name, value in os.environ.items() if not name.startswith("CARILLON_")}
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        "from carillon.main import main; main(prog_name='carillon')",
        group,
        *arguments,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**env, "CARILLON_DATA_DIR": data_dir, "COLUMNS": "200", "LC_ALL": "C.UTF-8"},
    )
    out, err = await asyncio.wait_for(process.communicate(), BOUND_S)
    assert process.returncode is not None
    return Outcome(process.returncode, out.decode(), err.decode())
