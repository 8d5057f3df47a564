"""Accounts owns users, teams and API tokens, and the pushes that wait for a second person's approval.

    server.py (users, teams, tokens)  log_ins/ (passwords, codes, links)  drafts/ (approvals)
        └─▶ decide.py, decide_teams.py ─▶ fact_writer.py ─▶ the log ─▶ projection.py: state.py ─▶ store.py (SQLite)

The console and the `carillon` command call it.
"""
