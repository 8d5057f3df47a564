"""`python -m tests.services.delivery.hand_over_model`: runs worlds until they have had so many messages."""

import os
import sys
import time
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait

import click
from rich.console import Console
from rich.progress import Progress

from tests.services.delivery.hand_over_model.rules import BrokenRuleError
from tests.services.delivery.hand_over_model.world import run_worlds

_AT_ONCE = 50
"""Worlds that one process runs before it tells how many messages they had."""

_LINE_EVERY_S = 30.0
"""Time between two lines that tell how far the run is, where there is no terminal for a bar."""


@click.command(context_settings={"show_default": True})
@click.option("--messages", type=click.IntRange(1), default=1_000_000, help="Messages on devices, at least.")
@click.option("--first", type=click.IntRange(0), default=0, help="The first seed.")
@click.option("--processes", type=click.IntRange(1), default=os.cpu_count() or 1, help="How many worlds run at once.")
def main(messages: int, first: int, processes: int) -> None:
    """Run worlds in which phones, channels and delivery do everything in any order. Exit code 1: one breaks a rule."""
    had = worlds = 0
    seeds = _parts(first)
    console, told_s = Console(stderr=True), time.monotonic()
    with ProcessPoolExecutor(processes) as pool, Progress(console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task("messages", total=messages)
        running = {pool.submit(run_worlds, next(seeds)) for _ in range(processes)}
        while running:
            done, running = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                try:
                    had += future.result()
                except BrokenRuleError as error:
                    pool.shutdown(wait=False, cancel_futures=True)
                    sys.exit(str(error))
                worlds += _AT_ONCE
                if had < messages:
                    running.add(pool.submit(run_worlds, next(seeds)))
            bar.update(task, completed=had)
            if not console.is_terminal and (now_s := time.monotonic()) >= told_s + _LINE_EVERY_S:
                told_s = now_s
                click.echo(f"{had} of {messages} messages, {worlds} worlds from seed {first} on", err=True)
    click.echo(f"{worlds} worlds with {had} messages: none shown twice, none lost")


def _parts(first: int) -> Iterator[range]:
    """Return the seeds from the first one on, as many at a time as one process runs."""
    while True:
        yield range(first, first + _AT_ONCE)
        first += _AT_ONCE


if __name__ == "__main__":
    main()
