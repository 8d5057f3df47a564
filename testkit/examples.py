"""The number of examples of a hypothesis test: few under the profile `quick`, all under `full`."""

import hypothesis

QUICK_SHARE = 0.05
LEAST = 5


def examples(full: int) -> int:
    """Return the number of examples under the current profile for a test with `full` under `full`."""
    if hypothesis.settings.get_current_profile_name() == "full":
        return full
    return min(full, max(LEAST, round(full * QUICK_SHARE)))
