"""What the push services of phones' makers share: messages of one push go together, answers are codes of a table.

    service.py (the PushService) ─▶ sender.py: requests for one or many devices, one sender for each set of credentials
                                    answers.py: what follows from a code

A maker's folder has its messages, its table, and its call: paths, headers, access tokens.
"""
