"""Messages to Android apps by Firebase Cloud Messaging, HTTP v1.

request.py: a message as Google's JSON     responses.py ◀─ what follows from Google's answer
tokens.py: the access tokens of a service account
"""
