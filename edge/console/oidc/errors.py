"""The errors of an OpenID Connect provider.

CarillonError
├── UnavailableError
│   └── ProviderAwayError    it does not answer, answers with a fault, or cannot be used as it is configured
├── ProviderRefusalError     it refuses: the code or the refresh token is not valid, or the person said no
├── StaleLogInError          the answer belongs to no log-in that this browser has begun lately
└── InvalidTokenError        a token that is not for this console, or that the provider did not sign
"""

from services.runtime.errors import CarillonError, UnavailableError


class ProviderAwayError(UnavailableError):
    """The provider does not answer, or its answer cannot be used; ask again later."""


class ProviderRefusalError(CarillonError):
    """The provider refuses, and will not think otherwise if it is asked again."""


class StaleLogInError(CarillonError):
    """The provider's answer belongs to no log-in that this browser has begun in the last minutes."""


class InvalidTokenError(CarillonError):
    """A token is not valid for this console; the message says why, for the log."""
