"""Garbage collection of a long-running process: rarely, and without its startup objects."""

import gc

_YOUNG = 50_000


def freeze_startup_objects() -> None:
    """Exclude all present objects from garbage collection; to be called once the process is ready.

    Python's defaults scan the whole heap again and again: several hundred thousand long-lived objects of modules and
    state. At a few hundred pushes a second that took two thirds of the event loop's time.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG, 20, 100)
