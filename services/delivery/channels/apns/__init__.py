"""Messages through Apple's push service.

channel.py (an app's pushes) ─▶ queue.py (chunks, delays, turns) ─▶ messages.py (token, badge, payload)
    └─▶ sender.py ─▶ connection.py ─▶ http2/     provider_tokens.py: the app's signed tokens
reasons.py ◀─ Apple's response: what follows for message, app and token    invalid_tokens.py: removals
"""
