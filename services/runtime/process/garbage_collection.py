"""Garbage collection of a long-running process: rarely, and without its startup objects."""

import gc

_YOUNG = 50_000


def collect_rarely() -> None:
    """Collect garbage rarely; to be called before the process restores its state.

    Python's defaults scan all objects again and again while millions of them are restored, for half of the start's
    time; and later, at a few hundred pushes a second, for two thirds of the event loop's.
    """
    gc.set_threshold(_YOUNG, 20, 100)


def freeze_startup_objects() -> None:
    """Exclude all present objects from garbage collection; to be called once the process is ready."""
    gc.collect()
    gc.freeze()
    collect_rarely()
