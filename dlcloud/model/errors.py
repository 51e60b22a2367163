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

A `CredentialsError` may know which action AWS denied, on which resource, and which kind of policy decided
(`Denial`): `doctor --fix-hint` makes the missing statements of it.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, ClassVar

IDENTITY_BASED = "identity-based policy"
ENCODED = "Encoded authorization failure message: "
# Source: IAM user guide, "Troubleshoot access denied error messages".
_TEXT = re.compile(
    r"is not authorized to perform: (?P<action>[\w-]+:\w+)(?: on resource: (?P<resource>.+?))?"
    r"(?: because no (?P<missing>[\w -]+?) allows|(?P<explicit> with an explicit deny)"
    r"(?: in an? (?P<denying>[\w -]+))?|[.\n]|$)",
    re.DOTALL,
)


SOURCE = " @ git+https://github.com/dlcloud/dlcloud"
"""Where pip and uv find dlcloud; empty once it is on PyPI, where until then anybody may take the name."""


def install_hint(extra: str) -> str:
    """Return the command that installs an extra."""
    return f"pip install 'dlcloud[{extra}]{SOURCE}'"


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

    denial: "Denial | None" = None
    """The action that AWS denied, where it says which."""


class MissingCredentialsError(CredentialsError):
    """There are none at all."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Denial:
    """An action that AWS denied.

    `resource` is an ARN, or empty; `policy` is the kind of policy that decided, as far as it is known.
    """

    action: str
    resource: str = ""
    policy: str = ""
    is_explicit: bool = False

    @property
    def resource_type(self) -> str:
        """The type of an EC2 resource, as of `instance`; else empty."""
        parts = self.resource.split(":", 5)
        return parts[5].split("/")[0] if len(parts) == 6 and parts[2] == "ec2" else ""  # noqa: PLR2004  an ARN

    def describe(self) -> str:
        subject = f"{self.action} on {self.resource}" if self.resource else self.action
        kind = self.policy or "policy"
        reason = f"an explicit deny in the {kind}" if self.is_explicit else f"no {kind} allows it"
        return f"{subject} is denied: {reason}"

    def advise(self) -> str:
        """Return what to do next."""
        if self.policy not in {"", IDENTITY_BASED}:
            return f"a {self.policy} decides: its administrator must allow {self.action}"
        if self.is_explicit:
            return f"remove the Deny statement on {self.action} from your policies"
        return "add the statement that `dlcloud doctor RECIPE --fix-hint` prints to your policy"


def read_denial(message: str) -> Denial | None:
    """Read a denial in AWS's words; None for another message, or one that says nothing but `denied`."""
    match = _TEXT.search(message)
    if match is None:
        return None
    return Denial(
        action=match["action"],
        resource=match["resource"] or "",
        policy=(match["missing"] or match["denying"] or "").strip(),
        is_explicit=match["explicit"] is not None,
    )


def read_decoded(text: str) -> str:
    """Put what DecodeAuthorizationMessage answers into AWS's words.

    Source: STS API reference, DecodeAuthorizationMessage.
    """
    content = json.loads(text)
    context = content["context"]
    reason = "with an explicit deny" if content.get("explicitDeny") else "because no policy allows it"
    return f"is not authorized to perform: {context['action']} on resource: {context['resource']} {reason}"


def missing_statements(denial: Denial, statements: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return those of a policy's statements that allow a denied action; one for it alone where none does."""
    resource = denial.resource or "*"
    allowing = [
        statement
        for statement in statements
        if denial.action in _as_list(statement["Action"])
        and any(fnmatchcase(resource, pattern) for pattern in _as_list(statement["Resource"]))
    ]
    return allowing or [{"Effect": "Allow", "Action": denial.action, "Resource": resource}]


def _as_list(value: object) -> list[str]:
    return [str(item) for item in value] if isinstance(value, list) else [str(value)]
