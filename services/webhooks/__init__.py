"""Webhooks posts the events of apps and teams to the receivers that their webhooks name.

    log_readers.py    read the log, make events (services/domain/events.py) and put them into queues
      └─▶ event_queue.py   the events of one subscription that wait, in order, and the offsets behind those delivered
            └─▶ sender.py   one request at a time, back-off, the pause after three days of failures
                  └─▶ requests.py, receivers.py   the forms and signatures of requests; the connections and answers
    event_streams.py  queues that a program reads by a call, in place of a receiver
    subscriptions.py  the webhooks of apps and teams as they are now, and whose events they get
    service.py    a queue and a sender for each of them; resending an hour
    push_ends.py  counts the outcomes of pushes whose end a webhook wants to know, and appends the ends
    notices/      mails to approvers and authors of drafts
    store.py      offsets, failures and latest attempts in SQLite: read, act, commit the offset

The role decides nothing and answers for no partition. Without a webhook it reads nothing.
"""
