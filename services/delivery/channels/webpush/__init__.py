"""Messages to browsers and to apps with UnifiedPush, by Web Push: RFC 8030, 8188, 8291 and 8292.

request.py ─▶ encryption.py: a message as the encrypted body of a request
vapid.py: the app's proof of identity     responses.py ◀─ what follows from the push service's answer
endpoints.py: connections to the hosts that may be called, at addresses that were checked
"""
