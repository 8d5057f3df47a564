"""Readers of push-commands in place of further instances of delivery; they apply nothing.

    python -m bench.shards.readers BOOTSTRAP COUNT

Prints a line once all of them read, and reads until it is killed.
"""

import asyncio
import sys

from services.domain.topics import PUSH_COMMANDS, TOPICS
from services.log.kafka.log import KafkaLog
from services.log.port import Partition, Reader

_COMMANDS = Partition(PUSH_COMMANDS.name, 0)


async def read(bootstrap: str, count: int) -> None:
    """Run `count` readers, each with a connection of its own."""
    log = await KafkaLog.connect(bootstrap, TOPICS)
    ends = await log.ends([_COMMANDS])
    readers = [await log.open(ends) for _ in range(count)]
    print(count, flush=True)
    await asyncio.gather(*map(_follow, readers))


async def _follow(reader: Reader) -> None:
    while True:
        await reader.read(200)


if __name__ == "__main__":
    asyncio.run(read(sys.argv[1], int(sys.argv[2])))
