"""Composing, checking, approving and sending a push.

pages.py, draft_pages.py, for_test_devices.py ─▶ page.py ─▶ forms.py ─▶ composed_pushes.py ─▶ the log, as the edge does
preview.py, audience.py, snippets.py: what a person sees before sending
"""
