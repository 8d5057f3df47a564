"""Pins every container image of docker-compose.yml and the Dockerfile to the digest that its registry has for its tag.

`make pin-images` runs it. It asks the registries by `docker buildx imagetools inspect`, rewrites both files in place
and prints what changed; with `--check` it changes nothing, and exit code 1 means that a tag has moved.
"""

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FILES = ("docker-compose.yml", "Dockerfile")
_IMAGE = re.compile(r"(?m)^(\s*image: |FROM )([\w./-]+:[\w.-]+)(@sha256:[0-9a-f]{64})?(?=\s|$)")


def pinned(text: str, digest_of: Callable[[str], str]) -> tuple[str, list[str]]:
    """Return the text with the digest of every image, and a line for each that was another one."""
    changes: list[str] = []

    def pin(found: re.Match[str]) -> str:
        digest = digest_of(found[2])
        if found[3] != f"@{digest}":
            changes.append(f"{found[2]}: {(found[3] or '@none')[1:]} -> {digest}")
        return f"{found[1]}{found[2]}@{digest}"

    return _IMAGE.sub(pin, text), changes


def registry_digest(image: str) -> str:
    """Ask the image's registry for the digest of its tag, over all platforms."""
    command = ["docker", "buildx", "imagetools", "inspect", image, "--format", "{{.Manifest.Digest}}"]
    try:
        ended = subprocess.run(command, capture_output=True, text=True, check=True)  # noqa: S603
    except (OSError, subprocess.CalledProcessError) as error:
        reason = str(getattr(error, "stderr", None) or error).strip().splitlines()[0]
        sys.exit(f"the digest of {image} cannot be read from its registry: {reason}")
    digest = ended.stdout.strip()
    if not re.fullmatch(r"sha256:[0-9a-f]{64}", digest):
        sys.exit(f"the registry's answer for {image} is no digest: {digest!r}")
    return digest


def main() -> int:
    changes: list[str] = []
    for name in FILES:
        text, changed = pinned((ROOT / name).read_text(), registry_digest)
        changes += changed
        if changed and "--check" not in sys.argv:
            (ROOT / name).write_text(text)
    print("\n".join(changes) or "every image has the digest that its registry has for its tag")
    return 1 if changes and "--check" in sys.argv else 0


if __name__ == "__main__":
    sys.exit(main())
