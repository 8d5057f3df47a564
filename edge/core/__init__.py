"""Code of all three interfaces: the path of a request from its bytes to a command in the log.

an endpoint ─▶ admission.py: the one place that decides whether a request may be executed, with its parts
    │             parsing/body.py (bytes)   signature.py   quotas.py (rates)
    │             request_limiter.py (slots and turns of apps)   replay_protection.py (nonces)
    ▼
idempotency.py, around each push ─▶ push.py ─▶ an interface's requests.py (parses it)
                                       ├─▶ PushAdmission of admission.py ─▶ message_ids.py ─▶ the log
answers.py: results and errors    tasks.py, analytics_calls.py: calls to other roles
"""
