"""Counts objects that code leaves to the cyclic garbage collector, whose pauses delay everything else in a process."""

import gc
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def cyclic_garbage() -> Iterator[Counter[str]]:
    """Count by type the objects that the block leaves to the collector; the yielded counts are filled in at its end."""
    found: Counter[str] = Counter()
    gc.collect()
    gc.freeze()  # each later collection looks at new objects only
    try:
        yield found
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        found.update(type(item).__qualname__ for item in gc.garbage)
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.unfreeze()
