"""Values that tests start from; each takes what a test wants otherwise."""

from dataclasses import fields
from datetime import UTC, datetime, timedelta
from decimal import Decimal

from dlcloud.analysis.result import Run, RunState
from dlcloud.model.cluster import Cluster, ClusterState, Member
from dlcloud.model.instance import Instance, InstanceState, InstanceType, Market, Price
from dlcloud.planning.launch_request import LaunchRequest, MachineSpec
from dlcloud.planning.plan import PreflightFacts, make_plan
from dlcloud.planning.quotas import CallerIdentity
from dlcloud.recipe.recipe import read_recipe
from dlcloud.scheduling.scaling import InstanceStage, TrainingInstance
from tests.fakes.cloud import IMAGE

THEN = datetime(2026, 9, 1, 12, 0, tzinfo=UTC)
PRICE_DATE = datetime(2026, 7, 20, tzinfo=UTC)

RECIPE = """\
name: sample
instances:
  types: [c7i.xlarge, c6i.xlarge]
  count: 2
workload:
  benchmark: quantization
"""


def recipe(text=RECIPE):
    return read_recipe(text, "recipe.yaml")


def price(instance_type="c7i.xlarge", usd="0.1785", market=Market.ON_DEMAND, zone=""):
    return Price(
        instance_type=instance_type,
        region="us-east-1",
        market=market,
        hourly_usd=Decimal(usd),
        as_of=PRICE_DATE,
        source="bundled table",
        zone=zone,
    )


def hardware(name="c7i.xlarge", status="current"):
    return InstanceType(
        name=name,
        status=status,
        vcpus=4,
        physical_cores=2,
        memory_gib=8.0,
        cpu_model="Xeon",
        cpu_isa=("avx512",),
    )


def observed(*prices, zones=("us-east-1a", "us-east-1b"), offered=None, known=()):
    names = ("c7i.xlarge", "c6i.xlarge", "t3.xlarge")
    return PreflightFacts(
        identity=CallerIdentity(account="123456789012", arn="arn:aws:iam::1:user/me"),
        cidrs=("203.0.113.7/32",),
        zones=offered if offered is not None else dict.fromkeys(names, zones),
        hardware={each.name: each for each in known},
        image=IMAGE,
        prices=list(prices or (price(), price("c6i.xlarge", "0.17"))),
    )


def plan(text=RECIPE, *prices):
    return make_plan(recipe(text), observed(*prices))


def cluster(
    name="sample-1a2b", *, cluster_id="c0ffee", state=ClusterState.STARTING, created_at=THEN, **other
):
    values = {
        "cloud": "aws",
        "region": "us-east-1",
        "recipe_text": RECIPE,
        "recipe_path": "recipe.yaml",
        "recipe_hash": recipe().hash,
        "user": "ubuntu",
        "disk_gib": 50,
    }
    return Cluster(
        cluster_id=cluster_id, name=name, state=state, created_at=created_at, **{**values, **other}
    )


def instance(instance_id="i-0001", **other):
    values = {
        "instance_type": "c7i.xlarge",
        "market": Market.ON_DEMAND,
        "zone": "us-east-1a",
        "state": InstanceState.RUNNING,
        "state_reason": "",
        "launched_at": THEN,
        "host": "198.51.100.1",
    }
    return Instance(instance_id=instance_id, **{**values, **other})


def member(number, market=Market.SPOT, usd=None, *, ended_at=None, **of_instance):
    """The member i-NUMBER, launched so many minutes after the cluster."""
    values = {"launched_at": THEN + timedelta(minutes=number), **of_instance}
    made = instance(f"i-{number}", market=market, **values)
    return Member(instance=made, hourly_usd=usd and Decimal(usd), ended_at=ended_at)


def worker(number, state=InstanceStage.TRAINING, market=Market.SPOT, **of_instance):
    return TrainingInstance(member=member(number, market, **of_instance), state=state)


def request(count=1, **other):
    """A launch of the sample cluster; what its instances have in common goes into their MachineSpec."""
    names = {each.name for each in fields(MachineSpec)} & other.keys()
    machine = {"image": IMAGE, "disk_gib": 50, **{name: other.pop(name) for name in names}}
    values = {
        "machine": MachineSpec(**machine),
        "instance_type": "c7i.xlarge",
        "zone": "",
        "market": Market.ON_DEMAND,
        "min_count": 1,
        "max_count": count,
        "security_group_id": "sg-c0ffee",
        "user_data": "#cloud-config",
        "client_token": "token",
        "tags": cluster().tags,
    }
    return LaunchRequest(**{**values, **other})


def run(run_id="sample-1a2b-0001", **other):
    values = {
        "cluster_id": "c0ffee",
        "cluster_name": "sample-1a2b",
        "instance_id": "i-0001",
        "workload": "quantization",
        "cloud": "aws",
        "region": "us-east-1",
        "zone": "us-east-1a",
        "instance_type": "c7i.xlarge",
        "market": Market.ON_DEMAND,
        "image_id": "ami-0123",
        "hourly_usd": Decimal("0.1785"),
        "price_source": "bundled table",
        "price_as_of": PRICE_DATE,
        "state": RunState.DONE,
        "started_at": THEN,
    }
    return Run(run_id=run_id, **{**values, **other})


def open_intents(clusters, cluster_id):
    """Return the actions that were begun for a cluster and not ended."""
    statement = "SELECT action FROM intents WHERE cluster_id = ? AND outcome IS NULL ORDER BY intent_id"
    return [row["action"] for row in clusters._database.read(statement, cluster_id)]
