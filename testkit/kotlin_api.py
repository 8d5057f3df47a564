"""The public API of the Kotlin SDKs, which `sdk/jvm/MODULE/api.txt` holds: no change of it goes unseen.

`python -m testkit.kotlin_api` writes the files anew, from what it builds.
"""

import subprocess
import sys
from collections.abc import Callable, Mapping

from testkit.kotlin_sdk import SOURCES, BuiltModule, android_sdk, coroutines_sdk, kotlin_sdk, okhttp_sdk

BUILT: Mapping[str, Callable[[], BuiltModule]] = {
    "device": kotlin_sdk,
    "device-okhttp": okhttp_sdk,
    "android": android_sdk,
    "android-ktx": coroutines_sdk,
}
"""By module, what builds it."""

_BOUND_S = 120


def public_api(module: str) -> str:
    """Return what programs may use of a module; skip the test where Java or Maven is missing."""
    command = kotlin_sdk().command("dev.carillon.device.ApiDumpKt")
    jar = BUILT[module]().artifact("jar")
    return subprocess.run(
        [*command, jar], check=True, capture_output=True, text=True, timeout=_BOUND_S, stdin=subprocess.DEVNULL
    ).stdout


def main() -> int:
    for module in BUILT:
        (SOURCES / module / "api.txt").write_text(public_api(module))
    return 0


if __name__ == "__main__":
    sys.exit(main())
