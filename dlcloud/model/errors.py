"""The error tree. A user sees `message`, then `hint`, the next command to type; never a traceback.

DlcloudError                 exit 1
├── RecipeError              exit 2   the recipe, or what was typed, is at fault
├── CloudError               exit 3   the cloud refused
│   ├── CredentialsError
│   │   └── WrongAccountError
│   ├── CapacityError
│   ├── QuotaError
│   └── ThrottledError
├── InstanceError            exit 4   an instance, or the program on it, failed
│   ├── UnreachableError
│   ├── HostKeyError
│   ├── LostInstanceError
│   └── RemoteCommandError
├── PartialError             exit 5   part of what was asked is done
├── BudgetError              exit 3
├── StoreError               exit 1
│   └── UnwritableError
├── TrackerError             exit 1   a tracker of results does not answer
│   └── TrackerRefusedError
└── LocalCloudError          exit 1   the local EC2 could not be started or reached
    └── InstanceGoneError
"""

from typing import ClassVar

from dlcloud.model.denials import Denial


class DlcloudError(Exception):
    """The base of all errors that a user sees.

    Args:
        message: One sentence or several lines, without a final full stop where it is one clause.
        hint: What the user can type or change next; may be empty.
        result_shown: A result has been printed: then no second document follows on stdout.
    """

    exit_code: ClassVar[int] = 1

    def __init__(self, message: str, hint: str = "", *, result_shown: bool = False) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.result_shown = result_shown


class RecipeError(DlcloudError):
    """A recipe or an argument cannot mean anything; nothing was touched."""

    exit_code = 2


class CloudError(DlcloudError):
    """The cloud refused a request."""

    exit_code = 3
    answered = True
    """Whether the cloud itself refused, so that nothing came of the request; else that is unknown."""
    is_final = False
    """Whether the request itself was refused, as denied or invalid: no other pool, market or time helps."""


class CredentialsError(CloudError):
    """There are no credentials, or they are not allowed to do this."""

    denial: Denial | None = None
    """The action that AWS denied, where it says which."""


class WrongAccountError(CredentialsError):
    """The credentials are of another account than the one that a cluster belongs to."""


class CapacityError(CloudError):
    """No pool had the instances that were asked for."""

    USUAL_HINT: ClassVar[str] = "try another type, zone or market"


class QuotaError(CloudError):
    """An account limit stands in the way; trying again cannot help."""


class ThrottledError(CloudError):
    """The API kept refusing for being called too often."""


class BudgetError(CloudError):
    """The plan costs more than the recipe allows."""


class InstanceError(DlcloudError):
    """An instance, or the program on it, failed."""

    exit_code = 4


class UnreachableError(InstanceError):
    """An instance did not answer over SSH in time."""


class HostKeyError(InstanceError):
    """An instance could not prove that its host key is its own, or the key changed."""


class LostInstanceError(InstanceError):
    """An instance was reclaimed, or is gone, while something ran on it."""


class RemoteCommandError(InstanceError):
    """A command on an instance ended with a status other than 0."""


class PartialError(DlcloudError):
    """Part of what was asked is done; the message says which part is not."""

    exit_code = 5


class StoreError(DlcloudError):
    """The store could not be read or written."""


class UnwritableError(StoreError):
    """Nothing can be written below the home: its disk is full, or it is read-only."""


class TrackerError(DlcloudError):
    """A tracker does not answer; what it lacks is stored here, and can be sent later."""


class TrackerRefusedError(TrackerError):
    """A tracker refused what it was sent, and would again; `status` is that of its answer."""

    def __init__(self, message: str, hint: str = "", *, status: int = 0) -> None:
        super().__init__(message, hint)
        self.status = status


class LocalCloudError(DlcloudError):
    """The local EC2 could not be started, reached or stopped."""


class InstanceGoneError(LocalCloudError):
    """The local EC2 has no such instance that is pending or running."""
