"""Messages through Apple's push service.

service.py (the PushService: payloads, badges, environments, bad tokens) ─▶ sender.py ─▶ ../http2/
responses.py ◀─ Apple's response: what follows for message, app and connection    provider_tokens.py: signed tokens
"""
