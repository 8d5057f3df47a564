"""The registry owns apps and devices: tokens, aliases, tags, attributes, device keys.

    server.py ─▶ app_settings.py, app_quotas.py, key_rotation.py, pauses.py    apps, changed by calls
    device-commands ─▶ projection.py: rules.py ─▶ decide.py ─▶ state.py ─▶ store.py (SQLite)
    devices ─▶ projection.py: rules.py, address_index.py    the indexes of aliases and of addresses
    queries.py: look-ups     revocation_worker.py, retirement.py: removals     tenure.py: one owner at a time
    ErasePerson ─▶ erasures.py: a fact in `erasures`, destroyed keys, and a stub of each device

The edge, the gateway and the console append commands and ask for devices; delivery asks for tokens and addresses.
"""
