"""The npm package `web-push` in a Node process, as a sender and receiver of Web Push that others wrote."""

import json
import subprocess
from pathlib import Path
from typing import Any

from testkit.npm_packages import npm_packages
from testkit.programs import needed

_HERE = Path(__file__).resolve().parent
_TIMEOUT_S = 60


def run_web_push(**asked: Any) -> Any:
    """Ask the peer, see `peer.mjs`; bytes are base64url texts."""
    command = [needed("node"), "--no-warnings", str(_HERE / "peer.mjs"), str(npm_packages(_HERE))]
    done = subprocess.run(
        command, input=json.dumps(asked), capture_output=True, text=True, check=True, timeout=_TIMEOUT_S
    )
    return json.loads(done.stdout)
