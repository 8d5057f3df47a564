"""Messages to Android apps by Firebase Cloud Messaging, HTTP v1.

service.py (the PushService) ─▶ sender.py: one for each service account ─▶ ../http2/
request.py: a message as Google's JSON     responses.py ◀─ what follows from Google's answer
tokens.py: the access tokens of a service account
"""
