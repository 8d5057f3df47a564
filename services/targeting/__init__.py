"""Targeting resolves audiences: which devices of an app match a filter, as bitmaps.

    devices, sessions ─▶ projection.py ─▶ state.py: index.py (a bitmap for each value), activity.py (opens by time)
    server.py ─▶ filters.py (checked, then evaluated in slices)          store.py: snapshots on disk
              ─▶ counting.py (the values of a field with their devices)

Delivery asks it when a push starts, the console before a push is sent.
"""
