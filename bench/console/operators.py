"""Simulates operators of the console: each opens a page, waits, and opens the next.

Real operators' browsers run on other machines. So that it delays the pushes little, this process takes the priority and
the short scheduler slices of the service's own children.

Reads the commands `start` and `stop`, one a line. Each is answered by three numbers: the answers 200, the answers 503,
and all answers since the latest `start`.
"""

import asyncio
import contextlib
import json
import random
import sys
from collections import Counter
from collections.abc import Sequence
from typing import Any

from bench.console.client import ConsoleClient
from services.runtime.child.lifecycle import lower_priority


async def open_pages(about: dict[str, Any], number: int, opened: Counter[int]) -> None:
    """Open random pages as operator `number` until cancelled, with a pause after each; count answers by status."""
    client = ConsoleClient(about["url"], about["cookie"])
    paths: Sequence[str] = about["paths"]
    chance = random.Random(number)
    await asyncio.sleep(chance.uniform(0, about["pause_s"]))
    while True:
        answer = await client.get(chance.choice(paths))
        opened[answer.status_code] += 1
        await asyncio.sleep(about["pause_s"])


async def operate(about: dict[str, Any]) -> None:
    commands = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(commands), sys.stdin)
    print(0, flush=True)
    opened: Counter[int] = Counter()
    tasks: list[asyncio.Task[None]] = []
    while line := (await commands.readline()).decode().strip():
        if line == "start":
            opened.clear()
            tasks = [asyncio.create_task(open_pages(about, number, opened)) for number in range(about["operators"])]
        else:
            for task in tasks:
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task
        print(opened[200], opened[503], sum(opened.values()), flush=True)


if __name__ == "__main__":
    lower_priority()
    asyncio.run(operate(json.loads(sys.argv[1])))
