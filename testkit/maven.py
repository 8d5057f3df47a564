"""Maven, run again where a repository has refused a file or has not answered.

Maven's own configuration says from which repositories its files come.
"""

import re
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from testkit.programs import needed

PAUSES_S = (5, 20)
"""Before the second and the third attempt."""
_NOT_FETCHED = re.compile("(could not|failed to) (transfer|resolve|find artifact)", re.IGNORECASE)
_SAID = 4000
"""Characters, of Maven itself and of the programs that it runs, which may print more."""


def maven(arguments: Sequence[str], folder: Path, bound_s: float) -> str:
    """Run Maven in a folder, for `bound_s` an attempt; return the end of what it said if it failed, else "".

    Skips the test where Maven is not installed.
    """
    command = [needed("mvn"), "-q", "-B", *arguments]
    said = _run(command, folder, bound_s)
    for pause_s in PAUSES_S:
        if not _NOT_FETCHED.search(said):
            break
        time.sleep(pause_s)
        said = _run([*command, "-U"], folder, bound_s)  # Maven remembers for a day what it did not get
    return said


def _run(command: Sequence[str], folder: Path, bound_s: float) -> str:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=bound_s, check=False)
    return done.stdout[-_SAID:] + done.stderr[-_SAID:] if done.returncode else ""
