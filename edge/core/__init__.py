"""Code of all three interfaces: the path of a request from its bytes to a command in the log.

parsing/body.py ─▶ admission.py (sign, networks, quota of requests) ─▶ request_limiter.py (turns of apps)
    ─▶ an interface's requests.py ─▶ idempotency.py ─▶ push.py (quotas.py, message_ids.py) ─▶ the log
answers.py: results and errors    tasks.py, analytics_calls.py: calls to other roles    replay_protection.py
"""
