"""The unified interface: one module for each group of calls; `app.py` has the routes."""
