"""Preflight in depth: quota left, subnets, scores, retired types and their successors, images that fit."""

from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from types import SimpleNamespace

import pytest
from botocore.exceptions import ClientError

from dlcloud.cloud.account.limits import Ec2Account
from dlcloud.launch.preflight import run_preflight
from dlcloud.model.account import AccountPlan
from dlcloud.model.errors import CapacityError, CloudError, CredentialsError, QuotaError
from dlcloud.model.instance import Image, Market
from dlcloud.planning.fit import successors
from dlcloud.planning.plan import make_plan
from dlcloud.planning.quotas import CODES, STANDARD, P, Usage, find_shortage, least_remedy, quota_key, quotas
from tests.fakes.clock import FakeClock
from tests.fakes.cloud import CATALOG, EVERY_TYPE, IMAGE, FakeAccount, FakeCloud
from tests.fakes.samples import RECIPE, hardware, price, recipe, request

STANDARD_CODE = CODES[STANDARD, Market.ON_DEMAND]


def cloud(**other):
    known = {name: hardware(name) for name in ("c7i.xlarge", "c6i.xlarge")}
    prices = [price(), price("c6i.xlarge", "0.17"), price(market=Market.SPOT)]
    return FakeCloud(FakeClock(), known_hardware=known, known_prices=prices, **other)


def planned(account, text=RECIPE, there=None):
    there = there or cloud()
    return make_plan(recipe(text), run_preflight(recipe(text), cloud=there, account=account).facts())


def test_running_instances_count_against_their_family_and_market():
    running = [
        Usage(instance_type="m5.xlarge", market=Market.ON_DEMAND, vcpus=4),
        Usage(instance_type="c5.large", market=Market.ON_DEMAND, vcpus=2),
        Usage(instance_type="c5.large", market=Market.SPOT, vcpus=2),
        Usage(instance_type="g5.xlarge", market=Market.ON_DEMAND, vcpus=4),
    ]
    quota = quotas({STANDARD_CODE: 10}, running)[STANDARD, Market.ON_DEMAND]
    assert (quota.used, quota.left) == (6, 4)
    assert quota.describe() == f"{STANDARD} on-demand: 6 of 10 vCPUs in use, 4 left"


@pytest.mark.parametrize(
    ("name", "market", "family"),
    [
        ("c7i.xlarge", Market.SPOT, STANDARD),
        ("p4d.24xlarge", Market.ON_DEMAND, P),
        ("p4d.24xlarge", Market.SPOT, P),
        ("p5.48xlarge", Market.SPOT, "P5"),
        ("g4dn.xlarge", Market.SPOT, "G and VT"),
        ("inf2.xlarge", Market.ON_DEMAND, "Inf"),
        ("trn1.2xlarge", Market.ON_DEMAND, "Trn"),
    ],
)
def test_every_type_has_its_limit(name, market, family):
    assert quota_key(name, market) == (family, market)


def test_the_image_is_that_of_the_type_as_ec2_describes_it():
    """It is looked up beside the types, for what the bundled table says of them."""
    there = cloud()
    there.images.asked = []

    def resolve(image, *, gpu, architecture):
        there.images.asked.append((gpu, architecture))
        return replace(IMAGE, name=f"{image} of {architecture}", architecture=architecture)

    there.images.resolve = resolve
    there.known_hardware = {
        name: replace(known, architectures=("arm64",)) for name, known in there.known_hardware.items()
    }
    assert run_preflight(recipe(RECIPE), cloud=there).answers["image"].architecture == "arm64"
    assert there.images.asked == [(False, "arm64")]
    there.types.listed = lambda names: {name: hardware(name) for name in names}
    assert run_preflight(recipe(RECIPE), cloud=there).answers["image"].architecture == "arm64"
    assert there.images.asked[1:] == [(False, "x86_64"), (False, "arm64")]


def test_a_small_quota_is_refused_before_launch_with_the_request_text():
    account = FakeAccount(
        kept_limit=8,
        true_limit=8,
        running=[Usage(instance_type="m5.large", market=Market.ON_DEMAND, vcpus=2)],
    )
    there = cloud()
    with pytest.raises(QuotaError) as caught:
        planned(account, there=there)
    # Two instances of 4 vCPUs, 2 of 8 in use.
    assert "2 of 4 vCPUs are needed" in caught.value.message
    assert "2 of 8 vCPUs in use, 6 left" in caught.value.message
    assert f"--quota-code {STANDARD_CODE} --desired-value 10" in caught.value.hint
    assert not there.requests


def test_a_cached_limit_that_is_too_low_is_looked_up_again():
    account = FakeAccount(kept_limit=4, true_limit=64)
    assert len(planned(account).pools) == 2
    assert account.asked_anew == [[STANDARD_CODE]]


def test_a_market_without_quota_is_left_out_and_the_other_one_used():
    text = RECIPE.replace("  count: 2\n", "  count: 2\n  market: spot-then-on-demand\n")
    account = FakeAccount(kept_limit=8, true_limit=8)
    account.running = [Usage(instance_type="c5.large", market=Market.SPOT, vcpus=2)]
    plan = planned(account, text)
    assert {pool.market for pool in plan.pools} == {Market.ON_DEMAND}
    assert any("spot is left out" in reason for reason in plan.reasons)


def test_a_refused_question_is_noted_and_does_not_stop_a_launch():
    plan = planned(FakeAccount(refuses=CredentialsError("not allowed to ask for limits")))
    assert plan.pools
    assert "not checked: not allowed to ask for limits" in plan.reasons


def test_an_account_without_a_default_vpc_is_refused_with_a_command():
    with pytest.raises(CloudError) as caught:
        planned(FakeAccount(zones={}))
    assert caught.value.hint == "aws ec2 create-default-vpc --region us-east-1"


def test_zones_without_a_default_subnet_are_not_tried_and_scores_named():
    text = RECIPE.replace("  count: 2\n", "  count: 2\n  market: spot\n")
    plan = planned(FakeAccount(zones={"us-east-1b": "use1-az2"}), text)
    assert not any("placement score" in reason for reason in plan.reasons)  # of two types it is always low
    text = text.replace("c6i.xlarge]", "c6i.xlarge, c5.xlarge]")
    plan = planned(FakeAccount(zones={"us-east-1b": "use1-az2"}), text)
    assert {pool.zones for pool in plan.pools} == {("us-east-1b",)}
    assert "spot placement score (10 is best): us-east-1b 9, use1-az1 3" in plan.reasons


A, B = "us-east-1a", "us-east-1b"


@pytest.mark.parametrize("fault", ["private", "isolated"])
def test_zones_with_unfit_subnets_are_avoided_and_named(fault):
    plan = planned(FakeAccount(**{fault: {A}}))
    assert {(pool.zone, pool.zones) for pool in plan.pools} == {(B, (B,))}
    assert plan.machine.network.public_ip is None
    assert any(reason.startswith(f"the default subnet of {A} ") for reason in plan.reasons)


def test_where_no_subnet_assigns_addresses_instances_ask_for_one():
    plan = planned(FakeAccount(private={A, B}))
    assert {(pool.zone, pool.zones) for pool in plan.pools} == {("", (A, B))}
    assert plan.machine.network.public_ip


def test_a_named_zone_whose_subnet_assigns_no_address_is_used():
    text = RECIPE.replace("  count: 2\n", f"  count: 2\n  zones: [{A}]\n")
    plan = planned(FakeAccount(private={A}), text)
    assert {pool.zone for pool in plan.pools} == {A}
    assert plan.machine.network.public_ip


def test_subnets_without_a_route_to_the_internet_are_refused():
    with pytest.raises(CloudError, match=f"no default subnet of {A}, {B} has a route") as caught:
        planned(FakeAccount(isolated={A, B}))
    assert "aws ec2 create-route --region us-east-1" in caught.value.hint
    text = RECIPE.replace("  count: 2\n", f"  count: 2\n  zones: [{A}]\n")
    with pytest.raises(CloudError, match=f"no default subnet of {A} has a route"):
        planned(FakeAccount(isolated={A}), text)


def test_a_retired_type_is_refused_with_the_nearest_current_ones():
    text = RECIPE.replace("[c7i.xlarge, c6i.xlarge]", "[p3.2xlarge]")
    there = cloud(offered={"p3.2xlarge": ()})
    there.known_hardware["p3.2xlarge"] = CATALOG.hardware("p3.2xlarge")
    with pytest.raises(CapacityError) as caught:
        planned(FakeAccount(), text, there)
    assert "AWS has retired it; nearest: " in caught.value.message
    near = successors("p3.2xlarge", EVERY_TYPE)
    assert [each.hardware.gpu.count for each in near] == [1, 1, 1]
    assert all(
        each.hardware.status == "current" and each.hardware.name in caught.value.message for each in near
    )


def test_of_eight_gpus_eight_are_the_nearest():
    assert successors("p3.16xlarge", EVERY_TYPE)[0].hardware.gpu.count == 8


def test_an_unknown_type_is_answered_with_names_like_it():
    assert "c7i.xlarge" in [each.hardware.name for each in successors("c7i.xlage", EVERY_TYPE)]
    assert successors("p5.4xlage", EVERY_TYPE)[0].hardware.name == "p5.4xlarge"


def test_an_unknown_gpu_type_is_answered_with_the_cheapest_gpus():
    near = successors("p2.xlarge", EVERY_TYPE)
    assert near[0].hardware.name.startswith("g")
    assert [each.hourly_usd for each in near] == sorted(each.hourly_usd for each in near)


def test_open_driver_is_refused_for_an_old_gpu_and_noted_in_rehearsals():
    text = RECIPE.replace("[c7i.xlarge, c6i.xlarge]", "[p3.2xlarge]").replace("count: 2", "count: 1")
    there = cloud()
    there.known_hardware["p3.2xlarge"] = CATALOG.hardware("p3.2xlarge")
    image = Image(
        image_id="ami-1", name="Deep Learning Base OSS Nvidia Driver GPU AMI", root_device="/dev/sda1"
    )
    there.images.resolve = lambda *_, **__: image
    with pytest.raises(CloudError, match="too old for"):
        planned(FakeAccount(), text, there)
    plan = planned(FakeAccount(), text.replace("name: sample", "name: sample\ncloud: local"), there)
    assert any("too old for" in reason for reason in plan.reasons)


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
    """Service Quotas that counts how often it is asked."""

    asked: list = field(default_factory=list)
    region: str = "us-east-1"
    unknown: tuple = ()

    def identity(self):
        return "me"

    def get(self, service):
        assert service == "service-quotas"
        return self

    def get_service_quota(self, *, ServiceCode, QuotaCode):  # noqa: N803  boto3's words
        self.asked.append((ServiceCode, QuotaCode))
        if QuotaCode in self.unknown:
            raise ClientError({"Error": {"Code": "NoSuchResourceException"}}, "GetServiceQuota")
        return {"Quota": {"Value": 32.0}}


def test_limits_are_cached_for_a_day_with_their_date():
    clients, clock = CountingClients(), FakeClock(datetime(2026, 9, 1, tzinfo=UTC))
    account = Ec2Account(clients=clients, catalog=CATALOG, cache=Memory(), clock=clock)
    assert account.limits([STANDARD_CODE]) == account.limits([STANDARD_CODE]) == {STANDARD_CODE: 32}
    assert len(clients.asked) == 1
    account.limits([STANDARD_CODE], fresh=True)
    clock.advance(timedelta(days=1, seconds=1).total_seconds())
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


def test_what_a_dry_run_allowed_is_not_asked_again_within_the_hour():
    clients, clock = AllowingClients(), FakeClock(datetime(2026, 9, 1, tzinfo=UTC))
    account = Ec2Account(clients=clients, catalog=CATALOG, cache=Memory(), clock=clock)
    counts = []
    for number, tags in enumerate([{}, {}, {"team": "other"}, {}]):
        clock.advance(61 * 60 if number == 3 else 1)
        account.dry_run("CreateSecurityGroup", request(tags=tags))
        counts.append(len(clients.asked))
    assert counts == [1, 1, 2, 3]
    account.dry_run("CreateSecurityGroup", request(tags={}), fresh=True)
    assert len(clients.asked) == 4


def test_what_a_dry_run_allowed_to_some_credentials_is_asked_again_for_others():
    clients = AllowingClients()
    account = Ec2Account(clients=clients, catalog=CATALOG, cache=Memory(), clock=FakeClock())
    counts = []
    for clients.access_key in ("AKIA-ADMIN", "AKIA-OTHER", "AKIA-ADMIN"):
        account.dry_run("CreateSecurityGroup", request())
        counts.append(len(clients.asked))
    assert counts == [1, 2, 2]


def test_a_dry_run_of_a_fleet_counts_no_denial_on_the_template_that_does_not_exist_yet():
    clients = AllowingClients()
    account = Ec2Account(clients=clients, catalog=CATALOG, cache=Memory(), clock=FakeClock())
    clients.denied = "launch-template/*"
    account.dry_run("CreateFleet", request())
    clients.denied = "fleet/*"
    with pytest.raises(CredentialsError, match=r"ec2:CreateFleet on .*fleet/\* is denied"):
        account.dry_run("CreateFleet", request(), fresh=True)


def test_p5_spot_counts_against_p_where_it_has_no_limit_of_its_own():
    p5, p = CODES["P5", Market.SPOT], CODES[P, Market.SPOT]
    clients = CountingClients(unknown=(p5,))
    limits = Ec2Account(clients=clients, catalog=CATALOG, cache=Memory(), clock=FakeClock()).limits([p5])
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


def test_the_worst_case_of_spot_is_the_most_ec2_may_charge():
    text = RECIPE.replace("  count: 2\n", "  count: 2\n  market: spot\n").replace(
        "[c7i.xlarge, c6i.xlarge]", "[c7i.xlarge]"
    )
    prices = [price(), replace(price(usd="0.06", market=Market.SPOT), zone="us-east-1a")]
    there = cloud()
    there.prices.find = lambda *_: prices
    assert planned(FakeAccount(), text, there).hourly_usd == 2 * Decimal("0.1785")
    limited = planned(FakeAccount(), text + "budget: {max_usd: 1}\n", there)
    # Under a budget the request itself limits the price: to 1.2 times the price now.
    assert limited.hourly_usd == 2 * Decimal("0.072")


def test_an_account_of_the_free_plan_launches_eligible_types_only():
    there = cloud()
    account = FakeAccount(plan=AccountPlan.FREE)
    for name, entry in there.known_hardware.items():
        there.known_hardware[name] = replace(entry, free_tier=name == "c6i.xlarge")
    assert {pool.instance_type for pool in planned(account, there=there).pools} == {"c6i.xlarge"}
    there.known_hardware["c6i.xlarge"] = replace(there.known_hardware["c6i.xlarge"], free_tier=False)
    with pytest.raises(QuotaError, match="Free plan may not launch it") as refused:
        planned(account, there=there)
    assert "upgrade-account-plan" in refused.value.hint
    for plan in (AccountPlan.PAID, None):
        assert planned(FakeAccount(plan=plan), there=there).pools
    unknown = cloud()
    assert planned(account, there=unknown).pools, "EC2 decides where it does not describe the type"


def test_the_least_remedy_is_that_of_the_type_with_the_fewest_vcpus():
    small, large = hardware("c7i.xlarge"), replace(hardware("c7i.xlarge"), vcpus=96)
    quota = quotas({STANDARD_CODE: 3}, ())[STANDARD, Market.ON_DEMAND]
    asked = {"account_plan": AccountPlan.FREE, "least": 1, "instances": 2}
    beyond = replace(small, free_tier=False)
    shortages = [find_shortage(entry, quota, **asked) for entry in (large, beyond, small)]
    assert least_remedy(shortages, "us-east-1").endswith("--desired-value 8")
    assert "upgrade" not in least_remedy(shortages, "us-east-1"), "the eligible type needs no upgrade"
    hint = least_remedy([shortages[1]], "us-east-1")
    assert hint.index("upgrade-account-plan") < hint.index("--desired-value 8")


@dataclass
class PlanClients:
    """An account that answers for its plan, and counts how often it is asked."""

    answer: dict = field(default_factory=lambda: {"accountPlanType": "PAID"})
    region: str = "us-east-1"
    asked: int = 0

    def identity(self):
        return "me"

    def get(self, service, region):
        assert (service, region) == ("freetier", "us-east-1")
        return self

    def get_account_plan_state(self):
        self.asked += 1
        if "Error" in self.answer:
            raise ClientError(self.answer, "GetAccountPlanState")
        return self.answer


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
    clients = PlanClients(answer=answer, region=region)
    account = Ec2Account(clients=clients, catalog=CATALOG, cache=Memory(), clock=FakeClock())
    assert [account.account_plan(), account.account_plan()] == [plan, plan]
    assert clients.asked == asked
