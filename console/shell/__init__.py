"""What every page and call of the console goes through.

middleware.py ─▶ sessions.py or bearer.py ─▶ access.py ─▶ page.py (visit.py) or calls.py
renderer.py (templates) ─▶ languages.py, error_words.py, static_files.py     feeds.py: parts of open pages, live
backend.py: the stubs of roles that pages and calls use
"""
