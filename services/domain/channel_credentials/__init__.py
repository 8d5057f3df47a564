"""What an app's messages on a channel are sent with: credentials of push services, each channel described in one place.

    fields.py       CredentialsForm: the fields in which people give the credentials of a channel, and what is shown
    fcm.py, …       a module for each channel: its form, and its credentials as its sender takes them
    forms.py        the table of the forms, and changes of an app's credentials
    stored.py       credentials in an app's record: sealed, opened, sealed anew

The forms make the options of `carillon app set`, the fields of the console's form, the checks of the registry, and what
answers, pages and the audit show. A further channel has a module here and a line in the table. APNs is not among them:
its key belongs to the platform of an iOS app.
"""
