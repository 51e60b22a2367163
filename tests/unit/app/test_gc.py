"""gc over all regions of an account, some of which policies deny or the network loses."""

import json
from types import SimpleNamespace

import pytest

from dlcloud.app.account.gc import Collector, places_to_look
from dlcloud.app.account.gc import collect as collect_leftovers
from dlcloud.model.account import Owner
from dlcloud.model.cluster import ClusterState, Leftover
from dlcloud.model.errors import CloudError, CredentialsError, PartialError
from dlcloud.store.home import Paths
from dlcloud.system.files import FileLock
from tests.fakes.clock import FakeClock
from tests.fakes.samples import cluster, instance, price

REGIONS = ["ap-south-1", "eu-west-1", "us-east-1"]


def denial(region):
    error = CredentialsError(f"looking in {region}: explicit deny in a service control policy")
    error.is_final = True
    return error


def cloud_of(region, leftovers, regions=lambda: REGIONS):
    return SimpleNamespace(
        caller=SimpleNamespace(regions=regions),
        leftovers=SimpleNamespace(find=leftovers),
        prices=SimpleNamespace(find=lambda *_: [price()]),
        region=region,
    )


class FakeContext:
    """A context whose regions have nothing left, or refuse to be listed."""

    def __init__(self, errors):
        self.errors, self.events, self.clock = errors, [], FakeClock()
        self.emit = self.events.append
        self.clusters = SimpleNamespace(active=list, all=list)
        self.first_region = "us-east-1"

        self.clouds = self

    def cloud(self, _name, region):
        def leftovers():
            if region in self.errors:
                raise self.errors[region]
            return []

        return cloud_of(region, leftovers)


def collect(errors, *regions):
    context = FakeContext(errors)
    collector = Collector(context=context, cloud="aws", regions=regions, clusters=frozenset())
    return context, lambda: collect_leftovers(
        [collector], is_chosen=True, dry_run=True, yes=False, output="table"
    )


def test_regions_that_a_policy_denies_are_named_and_passed_over(capsys):
    context, run = collect({name: denial(name) for name in REGIONS[:2]})
    run()
    (warning,) = [e.message for e in context.events if "not looked at" in e.message]
    assert "ap-south-1, eu-west-1 (looking in ap-south-1: explicit deny" in warning
    assert capsys.readouterr().out


def test_a_denied_region_that_was_named_is_an_error(capsys):
    _, run = collect({"eu-west-1": denial("eu-west-1")}, "eu-west-1", "us-east-1")
    with pytest.raises(PartialError, match="service control policy"):
        run()
    assert capsys.readouterr().out


def test_a_region_that_cannot_be_reached_is_partial(capsys):
    _, run = collect({"ap-south-1": denial("ap-south-1"), "eu-west-1": CloudError("no network")})
    with pytest.raises(PartialError, match=r"^no network$"):
        run()
    assert capsys.readouterr().out


def test_an_account_that_may_look_nowhere_is_an_error():
    _, run = collect({name: denial(name) for name in REGIONS})
    with pytest.raises(CredentialsError, match="service control policy"):
        run()


class Home(FakeContext):
    """A home that has launched clusters, on an EC2 where one of them still runs."""

    def __init__(self, folder, *clusters, is_local_up=False):
        super().__init__({})
        active = [cluster for cluster in clusters if cluster.state is not ClusterState.DOWN]
        self.clusters = SimpleNamespace(active=lambda: active, all=lambda: list(clusters))
        self.paths = Paths(folder)
        self.local_site = SimpleNamespace(find=lambda: SimpleNamespace() if is_local_up else None)

    def cloud(self, name, region):
        def leftovers():
            if name == "aws":
                raise CredentialsError("finding regions: there are no AWS credentials", "aws configure")
            return [
                Leftover(
                    kind="instance",
                    resource_id=f"i-{cluster.name}",
                    cluster_id=cluster.cluster_id,
                    name=cluster.name,
                    region=region,
                    instance=instance(f"i-{cluster.name}"),
                )
                for cluster in self.clusters.all()
                if cluster.cloud == name
            ]

        return cloud_of(region, leftovers, leftovers if name == "aws" else lambda: [region])

    def gc(self, *, is_chosen=False):
        collectors = [
            Collector(context=self, cloud=cloud, regions=(), clusters=frozenset())
            for cloud in places_to_look(self)
        ]
        collect_leftovers(collectors, is_chosen=is_chosen, dry_run=True, yes=False, output="json")


def test_a_cluster_whose_launcher_is_gone_is_listed_with_its_price(tmp_path, capsys):
    killed = cluster("killed", cluster_id="1", cloud="local", state=ClusterState.RUNNING)
    kept = cluster("kept", cluster_id="2", cloud="local", state=ClusterState.READY)
    managed = cluster("managed", cluster_id="3", cloud="local", state=ClusterState.RUNNING)
    home = Home(tmp_path, killed, kept, managed, is_local_up=True)
    home.paths.make_folder(home.paths.cluster("3"))
    lock = FileLock(home.paths.cluster_lock("3"))
    lock.acquire()
    home.gc()
    lock.release()
    result = json.loads(capsys.readouterr().out)["result"]
    assert result["records"] == []
    (unfinished,) = result["unfinished"]
    assert unfinished["command"] == "dlcloud down killed"
    assert (unfinished["instances"], float(unfinished["hourly_usd"])) == (1, 0.1785)


def test_gc_looks_wherever_the_home_can_have_launched(tmp_path, capsys):
    rehearsed = cluster(cloud="local", state=ClusterState.DOWN)
    home = Home(tmp_path, rehearsed, is_local_up=True)
    home.gc()
    assert any("there are no AWS credentials" in event.message for event in home.events)
    assert [record["cluster_id"] for record in json.loads(capsys.readouterr().out)["result"]["records"]]
    for launched in ([], [cluster()]):
        with pytest.raises(CredentialsError) as refusal:
            Home(tmp_path, *launched, is_local_up=True).gc()
        assert "dlcloud gc --cloud local" in refusal.value.hint


ANNA, BEN = Owner(digest="anna", home="h1"), Owner(digest="ben", home="h2")
HOMES = {"mine": ANNA, "laptop": Owner(digest="anna", home="h9"), "bens": BEN, "old": Owner()}


def owned(*, clusters=(), all_owners=False):
    """Return what Anna's gc would remove: hers, her laptop's, Ben's, an old version's; its notices."""
    context = FakeContext({})
    context.owner = lambda *_: ANNA
    items = [
        Leftover(
            kind=kind, resource_id=f"{kind}-{name}", cluster_id=name, name="", region="us-east-1", owner=owner
        )
        for name, owner in HOMES.items()
        for kind in ("volume", "security-group")
    ]
    context.cloud = lambda _name, region: cloud_of(region, lambda: items, lambda: ["us-east-1"])
    chosen = frozenset(clusters)
    collector = Collector(context=context, cloud="aws", regions=(), clusters=chosen, all_owners=all_owners)
    return {item.cluster_id for item in collector.find().leftovers}, [e.message for e in context.events]


def test_gc_removes_what_its_home_launched_and_says_whose_the_rest_is():
    removed, messages = owned()
    assert removed == {"mine"}
    text = "\n".join(messages)
    assert (
        "laptop (2 thing(s), us-east-1): of another home of yours (h9); left alone, unless dlcloud gc laptop"
        in text
    )
    assert (
        "bens (2 thing(s), us-east-1): of another owner (ben, home h2); left alone, unless --all-owners"
        in text
    )
    assert "old (2 thing(s), us-east-1): of another owner (unknown, home unknown)" in text


def test_gc_removes_by_its_id_what_a_lost_laptop_launched_and_no_more():
    assert owned(clusters=("laptop", "bens"))[0] == {"laptop"}
    removed, messages = owned(all_owners=True)
    assert removed == set(HOMES)
    assert any("bens" in message and "another owner (ben" in message for message in messages)
