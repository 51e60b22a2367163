"""AWS's plans of an account: the Free plan of new ones launches a few instance types only."""

from enum import StrEnum

ACCOUNT_PLAN_REGION = "us-east-1"
"""Where AWS answers for accounts. Source: botocore's endpoints of freetier, which are of one region."""
UPGRADE = f"aws freetier upgrade-account-plan --region {ACCOUNT_PLAN_REGION} --account-plan-type PAID"
"""Source: botocore's model of freetier, UpgradeAccountPlan."""
UPGRADE_HINT = f"upgrade the account to AWS's Paid plan: {UPGRADE}"


class AccountPlan(StrEnum):
    """The plan of an account. Source: AWS Free Tier API reference, GetAccountPlanState."""

    FREE = "FREE"
    PAID = "PAID"
