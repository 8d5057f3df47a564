"""Operators of the console who each open a page, look at it and open the next.

Their browsers would be on other machines, so their process is given the priority and the short scheduler slices of the
service's own children, and delays the pushes little.

Reads commands as lines: `start` and `stop`, which is answered by the pages that were opened and the answers 503.
"""

import asyncio
import contextlib
import json
import random
import sys
from collections import Counter
from collections.abc import Sequence
from typing import Any

from bench.console.reader import Reader
from services.runtime.child.lifecycle import lower_priority


async def read(about: dict[str, Any], number: int, opened: Counter[int]) -> None:
    """Open pages in an order of one's own for ever, with a pause after each."""
    reader = Reader(about["url"], about["cookie"])
    paths: Sequence[str] = about["paths"]
    chance = random.Random(number)
    await asyncio.sleep(chance.uniform(0, about["pause_s"]))
    while True:
        answer = await reader.get(chance.choice(paths))
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
            tasks = [asyncio.create_task(read(about, number, opened)) for number in range(about["operators"])]
        else:
            for task in tasks:
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task
        print(opened[200], opened[503], sum(opened.values()), flush=True)


if __name__ == "__main__":
    lower_priority()
    asyncio.run(operate(json.loads(sys.argv[1])))
