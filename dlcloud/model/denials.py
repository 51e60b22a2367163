"""Denials of AWS: which action on which resource, and which kind of policy decided."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

IDENTITY_BASED = "identity-based policy"
ENCODED = "Encoded authorization failure message: "
# Source: IAM user guide, "Troubleshoot access denied error messages".
_TEXT = re.compile(
    r"is not authorized to perform: (?P<action>[\w-]+:\w+)(?: on resource: (?P<resource>.+?))?"
    r"(?: because no (?P<missing>[\w -]+?) allows|(?P<explicit> with an explicit deny)"
    r"(?: in an? (?P<denying>[\w -]+))?|[.\n]|$)",
    re.DOTALL,
)


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
