"""A Cloud in memory: pools with capacity, a quota, tokens, answers that lag, calls that fail on demand."""

import functools
import threading
from collections import Counter
from dataclasses import dataclass, field, replace

from dlcloud.cloud.offers.catalog import Catalog
from dlcloud.model.account import AccountPlan
from dlcloud.model.cluster import CLUSTER_TAG, MANAGED_TAG, ControlClaim
from dlcloud.model.errors import CapacityError, CloudError, QuotaError
from dlcloud.model.instance import Image, Instance, InstanceState, Market, is_burstable
from dlcloud.planning.fit import KnownType
from dlcloud.planning.launch_request import LaunchResult, PoolRefusal
from dlcloud.planning.networks import Subnet
from dlcloud.planning.quotas import CallerIdentity

UNLIMITED = 10**6
CATALOG = Catalog()
EVERY_TYPE = [
    KnownType(hardware=each, price=CATALOG.on_demand_price(each.name, "us-east-1")) for each in CATALOG
]
IMAGE = Image(image_id="ami-0123", name="Ubuntu 24.04", root_device="/dev/sda1")


class Killed(BaseException):
    """The process ends here, as by kill -9: nothing of it runs any more."""


@dataclass
class Failure:
    """The `number`-th call of a method (from 1), as `instances.launch`, fails.

    `after`: it is carried out, only the answer is lost.
    """

    method: str
    error: BaseException
    number: int = 1
    after: bool = False

    def __post_init__(self):
        subject, _, method = self.method.partition(".")
        assert hasattr(globals()[f"Fake{subject.capitalize()}"], method), self.method


@dataclass
class _Record:
    instance: Instance
    visible_at: float
    address_at: float
    host: str
    gone_at: float = float("inf")
    asked_at: float = float("inf")


def _counted(method):
    """Count a call of a subject, and let it fail if that is due: before it is carried out, or after."""

    @functools.wraps(method)
    def call(self, *arguments, **options):
        name = f"{type(self).__name__.removeprefix('Fake').lower()}.{method.__name__}"
        return self._cloud._call(name, lambda: method(self, *arguments, **options))

    return call


class _Subject:
    """One part of a cloud, which shares the cloud's memory."""

    def __init__(self, cloud):
        self._cloud = cloud


class FakeCaller(_Subject):
    """Who calls."""

    @_counted
    def identity(self):
        return CallerIdentity(account="123456789012", arn="arn:aws:iam::1:user/me")

    def session_ends_at(self):
        return None

    @_counted
    def cidr(self):
        return "203.0.113.7/32"


class FakeTypes(_Subject):
    """What the region offers."""

    def hardware(self, names):
        there = self._cloud.known_hardware
        return {name: there[name] for name in names if name in there}

    listed = hardware

    @_counted
    def zones(self, names):
        offered = {name: self._cloud.offered.get(name, self._cloud.zones) for name in names}
        return {name: where for name, where in offered.items() if where}


class FakePrices(_Subject):
    """What it costs."""

    @_counted
    def find(self, instance_types, markets):
        prices = self._cloud.known_prices
        return [p for p in prices if p.instance_type in instance_types and p.market in markets]

    def spot_history(self, instance_types, since):
        prices = self.find(instance_types, [Market.SPOT])
        return [price for price in prices if price.zone and price.as_of >= since]


class FakeImages(_Subject):
    """The image that every name is of."""

    @_counted
    def resolve(self, image, *, gpu, architecture="x86_64"):  # noqa: ARG002  the EC2 class's
        return replace(IMAGE, name=f"{image} {'gpu' if gpu else 'cpu'}")

    def last(self, image, *, gpu, architecture="x86_64"):  # noqa: ARG002  the EC2 class's
        return None


class FakeInstances(_Subject):
    """Instances with a memory."""

    @_counted
    def find(self, cluster_id=""):
        tag, value = (CLUSTER_TAG, cluster_id) if cluster_id else (MANAGED_TAG, "true")
        now = self._cloud.clock.monotonic()
        listed = [record for record in self._cloud._records.values() if record.visible_at <= now]
        return [self._cloud._as_of(each, now) for each in listed if each.instance.tags.get(tag) == value]

    @_counted
    def healthy(self, instance_ids):
        return self._cloud.healthy & set(instance_ids)

    @_counted
    def launch(self, request):
        return self._cloud._launch(request)

    @_counted
    def terminate(self, instance_ids):
        for each in instance_ids:
            self._cloud._terminate(each)

    @_counted
    def put_tags(self, resource_ids, tags):
        for each in resource_ids:
            record = self._cloud._records[each]
            record.instance = replace(record.instance, tags={**record.instance.tags, **tags})

    @_counted
    def attach_profile(self, instance_id, profile):
        if instance_id not in self._cloud.alive():
            raise CloudError(f"there is no instance {instance_id} (InvalidInstanceID.NotFound)")
        if profile.removeprefix("dlcloud-") not in self._cloud.roles_made:
            raise CloudError(f"there is no profile {profile} (InvalidParameterValue)")
        if self._cloud.profiles.setdefault(instance_id, profile) != profile:
            raise CloudError(f"{instance_id} has another instance profile already")

    @_counted
    def admit_key(self, instance, user, public_key):
        record = self._cloud._records.get(instance.instance_id)
        now = self._cloud.clock.monotonic()
        if record is None or self._cloud._as_of(record, now).state is not InstanceState.RUNNING:
            raise CloudError(f"{instance.instance_id} does not run (EC2InstanceStateInvalidException)")
        self._cloud.admitted.append((instance.instance_id, user, public_key))


class FakeFleets(_Subject):
    """Fleets and their templates."""

    @_counted
    def create_template(self, request):
        name = f"dlcloud-{request.tags[CLUSTER_TAG]}"
        name += "-burstable" if is_burstable(request.instance_type) else ""
        self._cloud.templates.setdefault(name, request)
        return name

    @_counted
    def launch(self, request):
        return self._cloud._launch_fleet(request)

    @_counted
    def find(self, cluster_id):
        assert cluster_id
        return sorted(self._cloud.fleets_made)

    def delete(self, fleet_ids):
        for fleet_id in fleet_ids:  # each is a call
            self._cloud._call("fleets.delete", lambda one=fleet_id: self._cloud.fleets_made.discard(one))

    @_counted
    def delete_templates(self, cluster_id):
        for end in ("", "-burstable"):
            self._cloud.templates.pop(f"dlcloud-{cluster_id}{end}", None)


class FakeNetwork(_Subject):
    """Security groups and their rules."""

    @_counted
    def create_group(self, cluster_id, tags, *, vpc_id=""):  # noqa: ARG002  the EC2 class's
        assert tags[CLUSTER_TAG] == cluster_id
        visible_at = self._cloud.clock.monotonic() + self._cloud.lag_s
        self._cloud._group_visible_at.setdefault(cluster_id, visible_at)
        return self._cloud.groups.setdefault(cluster_id, f"sg-{cluster_id}")

    @_counted
    def find_group(self, cluster_id):
        return self._cloud.groups[cluster_id]

    @_counted
    def delete_groups(self, cluster_id):
        group, now = self._listed_group(cluster_id), self._cloud.clock.monotonic()
        if group is None:
            return []
        mine = [r for r in self._cloud._records.values() if r.instance.tags.get(CLUSTER_TAG) == cluster_id]
        if any(self._cloud._as_of(each, now).state is not InstanceState.TERMINATED for each in mine):
            return [group]
        del self._cloud.groups[cluster_id]
        return []

    @_counted
    def allow_ssh(self, security_group_id, cidr, *, named=False):  # noqa: ARG002  the EC2 class's
        assert security_group_id in self._cloud.groups.values()
        self._cloud.rules.add((security_group_id, cidr))

    @_counted
    def move_ssh(self, cluster_id, cidr):
        group = self._cloud.groups[cluster_id]
        old = sorted(rule for rule in self._cloud.rules if rule[0] == group)
        if (group, cidr) in old:
            return None
        self._cloud.rules = self._cloud.rules - set(old) | {(group, cidr)}
        return [network for _, network in old]

    @_counted
    def allow_peers(self, security_group_id):
        assert security_group_id in self._cloud.groups.values()
        self._cloud.rules.add((security_group_id, security_group_id))

    @_counted
    def allow_fabric(self, security_group_id):
        self._cloud.rules.add((security_group_id, "fabric"))

    @_counted
    def revoke_ssh(self, cluster_id):
        group = self._listed_group(cluster_id)
        if group is None:
            return []
        self._cloud.rules.difference_update({rule for rule in self._cloud.rules if rule[0] == group})
        return [group]

    def _listed_group(self, cluster_id):
        is_listed = self._cloud._group_visible_at.get(cluster_id, 0.0) <= self._cloud.clock.monotonic()
        return self._cloud.groups.get(cluster_id) if is_listed else None


class FakeCapacity(_Subject):
    """Reservations, of which instances take, and placement groups."""

    @_counted
    def reservations(self):
        return [
            replace(one, available=one.total - self._cloud._used(one.reservation_id))
            for one in self._cloud.capacity_reservations
        ]

    @_counted
    def create_placement_group(self, cluster_id, tags):
        name = f"dlcloud-{cluster_id}"
        self._cloud.placement_groups.setdefault(name, tags)
        return name

    @_counted
    def delete_placement_group(self, cluster_id):
        if self._cloud.group_zones and self._cloud.alive():
            raise CloudError("the placement group is in use (InvalidPlacementGroup.InUse)")
        self._cloud.placement_groups.pop(f"dlcloud-{cluster_id}", None)


class FakeBuckets(_Subject):
    """Buckets whose contents the test states."""

    def describe_prefix(self, uri):
        return self._cloud.data_sets[uri]

    def newest_step(self, uri):
        return self._cloud.checkpoints.get(uri, 0)

    @_counted
    def abort_uploads(self, uri):
        return self._cloud.uploads.pop(uri, 0)

    def last_step(self, uri, program):
        return self.newest_step(uri) if (uri, program) in self._cloud.finished else 0

    def region_of(self, uri):  # noqa: ARG002  the EC2 class's
        return "us-east-1"


class FakeBatch(_Subject):
    """AWS Batch without jobs."""

    @_counted
    def delete(self, cluster_id):
        self._cloud.queues.discard(cluster_id)

    def find(self):
        return iter(())


class FakeRoles(_Subject):
    """Roles, whose profiles instances are given."""

    @_counted
    def put_control(self, cluster_id, tags, *, boundary="", storage="", own=""):  # noqa: ARG002
        assert tags[CLUSTER_TAG] == cluster_id
        self._cloud.policies[f"{cluster_id} control"] = own
        self._cloud.roles_made.setdefault(cluster_id, dict(tags))
        return f"dlcloud-{cluster_id}"

    def put_storage(self, cluster_id, policy, tags, *, boundary=""):  # noqa: ARG002  the EC2 class's
        self._cloud.policies[cluster_id] = policy
        self._cloud.roles_made.setdefault(f"{cluster_id}-storage", dict(tags))
        return f"dlcloud-{cluster_id}-storage"

    @_counted
    def delete(self, cluster_id):
        self._cloud.roles_made.pop(cluster_id, None)


class FakeClaims(_Subject):
    """Claims, one a term."""

    @_counted
    def claim(self, term, instance_id, tags):
        assert tags[CLUSTER_TAG]
        if any(claim.term == term for claim in self._cloud.claims_made):
            return False
        made = ControlClaim(term=term, instance_id=instance_id, at=self._cloud.clock.now())
        self._cloud.claims_made.append(made)
        return True

    @_counted
    def find(self, cluster_id):  # noqa: ARG002  the EC2 class's
        return list(self._cloud.claims_made)


@dataclass
class FakeCloud:
    """EC2 with a memory.

    `pools` is what is left of a pool (type, zone, market), without limit where it is not named. A request
    without a zone takes from the first of `zones`. Every pool of a market in `denied` answers with its
    error, whose first word is its code.
    A launched one is known after `lag_s`, as is a security group, has an address after `boot_s`, and is
    terminated `shutdown_s` after it was asked to end. `roles_made` are tags by cluster id,
    `profiles` are attached profiles by instance id, `admitted` is (instance id, user, public key).
    """

    clock: object
    region: str = "us-east-1"
    endpoint_url: str = ""
    began_at: object = None
    zones: tuple = ("us-east-1a", "us-east-1b")
    offered: dict = field(default_factory=dict)
    known_hardware: dict = field(default_factory=dict)
    known_prices: list = field(default_factory=list)
    pools: dict = field(default_factory=dict)
    denied: dict = field(default_factory=dict)
    denied_until: float = float("inf")
    quota: int = UNLIMITED
    lag_s: float = 0.0
    boot_s: float = 2.0
    shutdown_s: float = 3.0
    runs_without_address: bool = False
    healthy: set = field(default_factory=set)
    protected: set = field(default_factory=set)
    failures: list = field(default_factory=list)
    requests: list = field(default_factory=list)
    calls: Counter = field(default_factory=Counter)
    groups: dict = field(default_factory=dict)
    rules: set = field(default_factory=set)
    templates: dict = field(default_factory=dict)
    fleets_made: set = field(default_factory=set)
    roles_made: dict = field(default_factory=dict)
    queues: set = field(default_factory=set)
    profiles: dict = field(default_factory=dict)
    policies: dict = field(default_factory=dict)
    data_sets: dict = field(default_factory=dict)
    checkpoints: dict = field(default_factory=dict)
    uploads: dict = field(default_factory=dict)
    finished: set = field(default_factory=set)
    admitted: list = field(default_factory=list)
    claims_made: list = field(default_factory=list)
    capacity_reservations: list = field(default_factory=list)
    placement_groups: dict = field(default_factory=dict)
    group_zones: dict = field(default_factory=dict)

    def __post_init__(self):
        self._lock = threading.RLock()
        self._records = {}
        self._tokens = {}
        self._group_visible_at = {}
        self.caller = FakeCaller(self)
        self.types = FakeTypes(self)
        self.prices = FakePrices(self)
        self.images = FakeImages(self)
        self.instances = FakeInstances(self)
        self.fleets = FakeFleets(self)
        self.network = FakeNetwork(self)
        self.capacity = FakeCapacity(self)
        self.batch = FakeBatch(self)
        self.buckets = FakeBuckets(self)
        self.roles = FakeRoles(self)
        self.claims = FakeClaims(self)

    def _used(self, reservation_id):
        now = self.clock.monotonic()
        living = [self._as_of(each, now) for each in self._records.values()]
        return sum(each.alive and each.reservation_id == reservation_id for each in living)

    def interrupt(self, instance_id, reason="Server.SpotInstanceTermination"):
        """Take an instance away, as EC2 does with spot instances."""
        record = self._records[instance_id]
        record.instance = replace(record.instance, state_reason=reason)
        self._terminate(instance_id)

    def forget(self, instance_id):
        """Know nothing of an instance any more, as EC2 an hour after its end, or in another account."""
        del self._records[instance_id]

    def alive(self):
        """Return the ids of what exists, listed or not."""
        now = self.clock.monotonic()
        return sorted(name for name, each in self._records.items() if self._as_of(each, now).alive)

    def _call(self, method, carry_out):
        with self._lock:
            self.calls[method] += 1
            due = [f for f in self.failures if f.method == method and f.number == self.calls[method]]
            if due and not due[0].after:
                raise due[0].error
            answer = carry_out()
            if due:
                raise due[0].error
            return answer

    def _launch(self, request):
        self.requests.append(request)
        if request.client_token in self._tokens:
            known, ids = self._tokens[request.client_token]
            if known != request:
                raise CloudError("IdempotentParameterMismatch")
            now = self.clock.monotonic()
            return [self._as_of(self._records[each], now) for each in ids]
        count = self._granted(request)
        launched = [self._new(request) for _ in range(count)]
        self._tokens[request.client_token] = (request, [each.instance_id for each in launched])
        return launched

    def _launch_fleet(self, request):
        """Take from the pools in their order: spot ones first for the spot part, and so on."""
        self.requests.append(request)
        if request.client_token in self._tokens:
            known, answer = self._tokens[request.client_token]
            if replace(known, requested_at=request.requested_at) != request:
                raise CloudError("IdempotentParameterMismatch")
            now = self.clock.monotonic()
            return replace(
                answer,
                instances=tuple(self._as_of(self._records[i.instance_id], now) for i in answer.instances),
            )
        for name, _ in request.pools:  # the template of each must be there
            template = self.templates[request.burstable_template if is_burstable(name) else request.template]
        fleet_id = f"fleet-{len(self.fleets_made) + 1:04x}"
        self.fleets_made.add(fleet_id)
        instances, refusals = [], []
        for market, count in (
            (Market.ON_DEMAND, request.on_demand_count),
            (Market.SPOT, request.spot_count),
        ):
            for name, zone in self._pools(request, market, count):
                missing = count - sum(each.market is market for each in instances)
                if missing <= 0:
                    break
                if market in self.denied and self.clock.monotonic() < self.denied_until:
                    error, pool = self.denied[market], f"{name} {market}"
                    refusals.append(
                        PoolRefusal(pool=pool, zone=zone, error=error, code=error.message.split()[0])
                    )
                    continue
                one = replace(
                    template, instance_type=name, zone=zone, market=market, min_count=1, max_count=missing
                )
                try:
                    granted = self._granted(one)
                except CloudError as error:
                    refusals.append(PoolRefusal(pool=f"{name} {market}", zone=zone, error=error))
                    continue
                tagged = replace(one, tags={**one.tags, "aws:ec2:fleet-id": fleet_id})
                instances += [self._new(tagged) for _ in range(granted)]
        answer = LaunchResult(instances=tuple(instances), refusals=tuple(refusals), fleet_id=fleet_id)
        self._tokens[request.client_token] = (request, answer)
        return answer

    def _pools(self, request, market, count):
        """Of a request for one zone: the pools of the zone that gives most."""
        if not request.single_zone:
            return request.pools
        room = Counter()
        for name, zone in request.pools:
            room[zone] += min(count, self.pools.get((name, zone, market), count))
        best = max(room, key=lambda zone: min(count, room[zone]))
        return [pool for pool in request.pools if pool[1] == best]

    def _granted(self, request):
        if request.reservation_id:
            (one,) = [r for r in self.capacity_reservations if r.reservation_id == request.reservation_id]
            left = one.total - self._used(one.reservation_id)
            if left < request.min_count:
                raise CapacityError("the reservation is full (ReservationCapacityExceeded)")
            return min(request.max_count, left)
        pool = (request.instance_type, request.zone or self.zones[0], request.market)
        if self.group_zones.get(request.machine.placement_group, pool[1]) != pool[1]:
            error = CloudError("the placement group is in another zone (InvalidParameterCombination)")
            error.is_final = True
            raise error
        left = self.pools.get(pool, UNLIMITED)
        if left < request.min_count:
            raise CapacityError(f"no capacity for {' '.join(pool)} (InsufficientInstanceCapacity)")
        room = self.quota - len(self.alive())
        if room < request.min_count:
            raise QuotaError("over the account's limit (VcpuLimitExceeded)", "ask for a higher limit")
        granted = min(request.max_count, left, room)
        self.pools[pool] = left - granted
        if request.machine.placement_group:
            self.group_zones[request.machine.placement_group] = pool[1]
        return granted

    def _new(self, request):
        number = len(self._records) + 1
        now = self.clock.monotonic()
        instance = Instance(
            instance_id=f"i-{number:04x}",
            instance_type=request.instance_type,
            market=Market(request.market),
            zone=request.zone or self.zones[0],
            state=InstanceState.PENDING,
            state_reason="",
            launched_at=self.clock.now(),
            tags=dict(request.tags),
            reservation_id=request.reservation_id,
        )
        self._records[instance.instance_id] = _Record(
            instance=instance,
            visible_at=now + self.lag_s,
            address_at=now + self.boot_s,
            host=f"198.51.100.{number}",
        )
        return instance

    def _terminate(self, instance_id):
        record = self._records[instance_id]
        now = self.clock.monotonic()
        if record.visible_at > now:
            return  # InvalidInstanceID.NotFound
        if instance_id in self.protected:
            return
        record.asked_at = min(record.asked_at, now)
        record.gone_at = min(record.gone_at, now + self.shutdown_s)

    def _as_of(self, record, now):
        if record.gone_at <= now:
            return replace(record.instance, state=InstanceState.TERMINATED, host="")
        if record.asked_at <= now:
            return replace(record.instance, state=InstanceState.SHUTTING_DOWN, host="")
        if record.address_at <= now:
            return replace(record.instance, state=InstanceState.RUNNING, host=record.host)
        if self.runs_without_address:
            return replace(record.instance, state=InstanceState.RUNNING)
        return record.instance


@dataclass
class FakeAccount:
    """An account with a limit that may have been raised since it was last asked for.

    `dry_runs` are refusals by the action, or by the action and the market.
    """

    kept_limit: int = 1000
    true_limit: int = 1000
    running: list = field(default_factory=list)
    zones: dict = field(default_factory=lambda: {"us-east-1a": "use1-az1", "us-east-1b": "use1-az2"})
    private: set = field(default_factory=set)
    isolated: set = field(default_factory=set)
    refuses: Exception | None = None
    asked_anew: list = field(default_factory=list)
    plan: AccountPlan | None = None
    dry_runs: dict = field(default_factory=dict)
    asked_dry: list = field(default_factory=list)

    def dry_run(self, action, request, *, fresh=False):  # noqa: ARG002  the EC2 class's
        self.asked_dry.append((action, request))
        error = self.dry_runs.get((action, request.market)) or self.dry_runs.get(action)
        if error is not None:
            raise error

    def known_types(self):
        return EVERY_TYPE

    def limits(self, codes, *, fresh=False):
        if self.refuses:
            raise self.refuses
        if fresh:
            self.asked_anew.append(codes)
        return dict.fromkeys(codes, self.true_limit if fresh else self.kept_limit)

    def usage(self):
        return self.running

    def account_plan(self):
        return self.plan

    def subnets(self, *, fresh=False):  # noqa: ARG002  the EC2 class's
        return {
            zone: Subnet(
                zone_id=zone_id,
                assigns_addresses=zone not in self.private,
                reaches_internet=zone not in self.isolated,
            )
            for zone, zone_id in self.zones.items()
        }

    def spot_scores(self, instance_types, count, regions=()):  # noqa: ARG002  the EC2 class's
        return {"us-east-1": {"use1-az1": 3, "use1-az2": 9}}
