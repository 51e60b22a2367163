"""What an account may launch: its limits, its plan and what dry runs allow, each kept for its time."""

from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest
from botocore.exceptions import ClientError

from dlcloud.cloud.account.limits import Ec2Account
from dlcloud.model.account import AccountPlan
from dlcloud.model.errors import CredentialsError
from dlcloud.model.instance import Market
from dlcloud.planning.quotas import CODES, STANDARD, P, Usage, quotas
from tests.fakes.clock import FakeClock
from tests.fakes.cloud import CATALOG
from tests.fakes.samples import request

STANDARD_CODE = CODES[STANDARD, Market.ON_DEMAND]


@dataclass
class Memory:
    """Answers kept."""

    kept: dict = field(default_factory=dict)

    def get(self, subject):
        return self.kept.get(subject)

    def put(self, subject, content, as_of):
        self.kept[subject] = (content, as_of)


@dataclass
class CountingClients:
    """Service Quotas and the plan of an account, which count how often they are asked."""

    asked: list = field(default_factory=list)
    region: str = "us-east-1"
    unknown: tuple = ()
    plan: dict = field(default_factory=dict)

    def identity(self):
        return "me"

    def get(self, service, region=""):
        assert (service, region) in {("service-quotas", ""), ("freetier", "us-east-1")}
        return self

    def get_service_quota(self, *, ServiceCode, QuotaCode):  # noqa: N803  boto3's words
        self.asked.append((ServiceCode, QuotaCode))
        if QuotaCode in self.unknown:
            raise ClientError({"Error": {"Code": "NoSuchResourceException"}}, "GetServiceQuota")
        return {"Quota": {"Value": 32.0}}

    def get_account_plan_state(self):
        self.asked.append("plan")
        if "Error" in self.plan:
            raise ClientError(self.plan, "GetAccountPlanState")
        return self.plan


def account_of(clients, clock=None):
    return Ec2Account(clients=clients, catalog=CATALOG, cache=Memory(), clock=clock or FakeClock())


def test_limits_are_cached_for_a_day_with_their_date():
    clients, clock = CountingClients(), FakeClock()
    account = account_of(clients, clock)
    assert account.limits([STANDARD_CODE]) == account.limits([STANDARD_CODE]) == {STANDARD_CODE: 32}
    assert len(clients.asked) == 1
    account.limits([STANDARD_CODE], fresh=True)
    clock.advance(24 * 3600 + 1)
    account.limits([STANDARD_CODE])
    assert len(clients.asked) == 3


class AllowingClients(CountingClients):
    """EC2 that counts dry runs and allows them; it denies one of CreateFleet on what `denied` names."""

    access_key, denied = "AKIA", ""

    def get_without_retries(self):
        return self

    def credentials(self):
        return SimpleNamespace(access_key=self.access_key)

    def create_fleet(self, **_):
        action, resource = "ec2:CreateFleet", f"arn:aws:ec2:us-east-1:123456789012:{self.denied}"
        text = f"User: arn:aws:iam::1:user/a is not authorized to perform: {action} on resource: {resource}"
        error = {"Code": "UnauthorizedOperation", "Message": f"{text} because no policy allows it"}
        raise ClientError({"Error": error}, "CreateFleet")

    def create_security_group(self, *, DryRun, Description, **_):  # noqa: N803  boto3's words
        self.asked.append((DryRun, Description))
        raise ClientError({"Error": {"Code": "DryRunOperation"}}, "CreateSecurityGroup")


def test_what_a_dry_run_allowed_is_not_asked_again_within_the_hour_by_the_same_caller():
    clients, clock = AllowingClients(), FakeClock()
    account = account_of(clients, clock)

    def asked(key="AKIA", tags=None, after_s=1, **how):
        clients.access_key = key
        clock.advance(after_s)
        account.dry_run("CreateSecurityGroup", request(tags=tags or {}), **how)
        return len(clients.asked)

    assert [asked(), asked(), asked(tags={"team": "other"})] == [1, 1, 2]
    assert [asked(key="AKIA-OTHER"), asked(), asked(after_s=61 * 60), asked(fresh=True)] == [3, 3, 4, 5]


def test_a_dry_run_of_a_fleet_counts_no_denial_on_the_template_that_does_not_exist_yet():
    clients = AllowingClients()
    account = account_of(clients)
    clients.denied = "launch-template/*"
    account.dry_run("CreateFleet", request())
    clients.denied = "fleet/*"
    with pytest.raises(CredentialsError, match=r"ec2:CreateFleet on .*fleet/\* is denied"):
        account.dry_run("CreateFleet", request(), fresh=True)


def test_p5_spot_counts_against_p_where_it_has_no_limit_of_its_own():
    p5, p = CODES["P5", Market.SPOT], CODES[P, Market.SPOT]
    clients = CountingClients(unknown=(p5,))
    limits = account_of(clients).limits([p5])
    assert limits == {p: 32}
    running = [
        Usage(instance_type=name, market=Market.SPOT, vcpus=8) for name in ("p5.48xlarge", "p4d.24xlarge")
    ]
    joined = quotas(limits, running)
    assert joined["P5", Market.SPOT].used == joined[P, Market.SPOT].used == 16
    assert joined["P5", Market.SPOT].code == p
    assert {key: quota.used for key, quota in quotas({p5: 192, p: 64}, running).items()} == {
        ("P5", Market.SPOT): 8,
        (P, Market.SPOT): 8,
    }


@pytest.mark.parametrize(
    ("answer", "region", "plan", "asked"),
    [
        ({"accountPlanType": "PAID"}, "eu-west-1", AccountPlan.PAID, 1),
        ({"accountPlanType": "FREE"}, "us-east-1", AccountPlan.FREE, 2),
        ({"Error": {"Code": "ResourceNotFoundException"}}, "us-east-1", None, 2),
        ({}, "cn-north-1", None, 0),
    ],
)
def test_a_paid_plan_is_kept_and_a_free_one_asked_for_each_time(answer, region, plan, asked):
    clients = CountingClients(plan=answer, region=region)
    account = account_of(clients)
    assert [account.account_plan(), account.account_plan()] == [plan, plan]
    assert len(clients.asked) == asked
