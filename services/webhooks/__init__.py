"""Webhooks posts the events of apps and teams to the receivers that their webhooks name.

    walks.py      reads the log, makes events (services/domain/events.py) and puts them into lanes
      └─▶ lane.py     the events of one webhook that wait, in order, and the offsets behind those that were delivered
            └─▶ sender.py   one request at a time, back-off, the pause after three days of failures
                  └─▶ requests.py, receivers.py   the forms and signatures of requests; the connections and answers
    watches.py    lanes that a program reads by a call, in place of a receiver
    subscriptions.py  the webhooks of apps and teams as they are now, and whose events they get
    service.py    a lane and a sender for each of them; resending an hour
    push_ends.py  counts the outcomes of pushes whose end a webhook wants to know, and appends the ends
    notices/      mails to approvers and authors of drafts
    store.py      offsets, failures and latest attempts in SQLite: read, act, commit the offset

The role decides nothing and answers for no partition. Without a webhook it reads nothing.
"""
