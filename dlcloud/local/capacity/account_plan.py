"""The plan of the local account: Paid, or the Free plan of a new account, which launches a few types only."""

from dataclasses import dataclass
from typing import Any

NOT_ELIGIBLE = (
    "The specified instance type is not eligible for Free Tier. For a list of Free Tier instance types, "
    "run 'describe-instance-types' with the filter 'free-tier-eligible=true'."
)
"""EC2's message. Source: LinkedInLearning/learning-terraform-3087701, issue 345."""


@dataclass(slots=True)
class LocalAccountPlan:
    """The plan of the account; changed by a control page."""

    is_free: bool = False

    def state(self, account: str) -> dict[str, Any]:
        """Return the answer of GetAccountPlanState. Source: botocore's model of freetier."""
        plan = "FREE" if self.is_free else "PAID"
        return {"accountId": account, "accountPlanType": plan, "accountPlanStatus": "ACTIVE"}
