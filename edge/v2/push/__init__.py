"""POST /v2/push: `handlers.py` ─▶ `requests.py` ─▶ `targets.py` (to whom) and `style.py` (what)."""
