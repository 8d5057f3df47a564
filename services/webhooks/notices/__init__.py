"""Mails to people about drafts: that one waits for their approval, was decided, or has expired.

    service.py   reads topic `drafts`, and sends what waits, again after failures
      ├─▶ mails.py    whom a fact concerns, and what they are told, in their language
      ├─▶ store.py    drafts that wait, mails that were not taken yet, and the offset, in SQLite: read, store, send
      └─▶ smtp.py     sessions with the mail server, which mail_server.py reads from the settings

Without CARILLON_SMTP_URL nothing of it runs. No decision waits for a mail.
"""
