"""The legacy iOS interface: `app.py` has routes and endpoints, `requests.py` parses, `replies.py` answers."""
