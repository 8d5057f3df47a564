"""What `carillon up` prints: where each door is, and a first push that works when pasted."""

import json
import shlex

from edge.core.canonical import canonical_text
from edge.core.sign import sign_text

DEMO_ALIAS = "alice"
DEMO_STAG = "news"


def first_push(appkey: str, secret: str, v2_url: str) -> tuple[str, str]:
    """A complete, signed curl command and the `carillon send` line for the same push."""
    push = {
        "sendTo": {"appkey": {"android": appkey}, "userScope": 6, "stag": [[DEMO_STAG]]},
        "msgStyle": {
            "basic": {"content": "Hello from Carillon", "is_notif": 1},
            "android": {"title": "First push", "click_action": 1, "click_param": ""},
        },
        "option": {"period": 3600},
    }
    body = json.dumps(push, ensure_ascii=False)
    signed = json.dumps({**push, "sign": sign_text(canonical_text(body.encode()), [secret])}, ensure_ascii=False)
    url = f"{v2_url}/v2/push"
    curl = f"curl -s {url} -H 'Content-Type: application/json' -d {shlex.quote(signed)}"
    send = f"echo {shlex.quote(body)} | carillon send --secret {secret} --url {url} -"
    return curl, send


def device_line(appkey: str) -> str:
    """The command that connects a virtual device which the first push reaches."""
    return f"carillon device run --appkey {appkey} --alias {DEMO_ALIAS} --stag {DEMO_STAG}"
