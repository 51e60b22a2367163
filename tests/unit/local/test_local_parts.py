"""The parts that need no daemon: allocation, user data, faults, prices, state."""

import asyncio
import os
import select
import subprocess
from decimal import Decimal

import asyncssh
import pytest

from dlcloud.cloud.offers.catalog import Catalog
from dlcloud.local.api.faults import Fault, FaultInjector
from dlcloud.local.capacity.pools import UNLIMITED, Capacity, Offer, Pool, Strategy, VcpuQuotas, allocate
from dlcloud.local.ec2.services import on_demand_price, spot_usd
from dlcloud.local.instance import processes
from dlcloud.local.instance.addresses import AddressPool
from dlcloud.local.instance.cloudinit import read_user_data
from dlcloud.local.instance.container import Container
from dlcloud.local.instance.metadata import MetadataService
from dlcloud.local.instance.processes import instance_environment, package_sources, start_process
from dlcloud.local.instance.sshd import LoginFiles, SshServer
from dlcloud.local.site_files import SiteState, read_state, write_state
from dlcloud.local.tree import instance_tree
from dlcloud.local.tree.instance_tree import InstanceTree
from dlcloud.model.instance import Market

LIMIT_S = 60.0


def offer(name, left, price, zone="a", **more):
    return Offer(pool=Pool(instance_type=name, zone=zone), left=left, price=Decimal(price), **more)


def granted(allocation):
    return {grant.offer.pool.instance_type: grant.count for grant in allocation.grants}


def test_lowest_price_fills_the_cheapest_pool_and_names_the_full_one():
    offers = [offer("dear", 9, 3), offer("cheap", 2, 1)]
    allocation = allocate(offers, target=5, strategy=Strategy.LOWEST_PRICE)
    assert granted(allocation) == {"cheap": 2, "dear": 3}
    assert [refused.pool.instance_type for refused in allocation.refused] == ["cheap"]


def test_price_capacity_prefers_pools_that_hold_the_whole_target():
    offers = [offer("dear", 9, 3), offer("cheap", 2, 1)]
    allocation = allocate(offers, target=5, strategy=Strategy.PRICE_CAPACITY)
    assert granted(allocation) == {"dear": 5}


def test_an_empty_pool_grants_nothing_and_is_refused():
    allocation = allocate([offer("x", 0, 1)], target=2, strategy=Strategy.LOWEST_PRICE)
    assert allocation.grants == ()
    assert len(allocation.refused) == 1


def test_two_overrides_of_one_pool_share_its_room():
    offers = [offer("x", 3, 1, override=0), offer("x", 3, 1, override=1)]
    allocation = allocate(offers, target=5, strategy=Strategy.LOWEST_PRICE)
    assert allocation.fulfilled == 3


def test_one_zone_takes_the_best_zone():
    offers = [offer("x", 1, 1, zone="a"), offer("x", 5, 2, zone="b"), offer("y", 5, 3, zone="b")]
    allocation = allocate(offers, target=4, strategy=Strategy.LOWEST_PRICE, one_zone=True)
    assert {grant.offer.pool.zone for grant in allocation.grants} == {"b"}
    assert allocation.fulfilled == 4


def test_capacity_counts_type_and_zone():
    living = [Pool(instance_type="x", zone="a"), Pool(instance_type="x", zone="b")]
    capacity = Capacity(lambda: living)
    assert capacity.left("x", "a") == UNLIMITED
    capacity.set_limit("x", None, 3)
    capacity.set_limit("x", "a", 5)
    assert capacity.left("x", "a") == 1
    assert capacity.left("x") == 1
    capacity.remove_limits("x", "b")
    assert capacity.left("x", "a") == 1
    capacity.remove_limits("x", None)  # "capacity of x: unlimited" was shown while zone a had its limit
    assert capacity.left("x", "a") == UNLIMITED


def test_capacity_and_quotas_are_those_of_a_region():
    zones = ["us-east-1a", "us-east-1b", "us-west-2a"]
    capacity = Capacity(lambda: [Pool(instance_type="c7i.large", zone=zone) for zone in zones])
    capacity.set_limit("c7i.large", "us-east-1", 3)
    assert capacity.left("c7i.large", "us-east-1a") == capacity.left("c7i.large", "us-east-1") == 1
    assert capacity.left("c7i.large", "us-west-2a") == capacity.left("c7i.large") == UNLIMITED
    capacity.set_limit("c7i.large", "us-east-1a", 1)
    capacity.remove_limits("c7i.large", "us-east-1")
    assert capacity.left("c7i.large", "us-east-1a") == UNLIMITED
    running = [("c7i.large", Market.ON_DEMAND, zone) for zone in zones]
    quotas = VcpuQuotas(running=lambda: running, vcpus={"c7i.large": 2})
    quotas.set_limit("c7i.large", Market.ON_DEMAND, 6)
    assert quotas.instances_left("c7i.large", Market.ON_DEMAND, "us-east-1") == 1
    assert quotas.instances_left("c7i.large", Market.ON_DEMAND, "us-west-2") == 2


@pytest.mark.parametrize("rate", [0.0, 0.25, 1 / 3, 0.5, 1.0])
def test_a_rate_is_kept_over_any_hundred_calls(rate):
    faults = FaultInjector()
    faults.add(Fault(action="*", code="X", rate=rate))
    struck = sum(faults.count_call("A") is not None for _ in range(120))
    assert struck == round(120 * rate)


def test_a_counted_fault_goes_away():
    faults = FaultInjector()
    faults.add(Fault(action="A", code="X", times=2))
    assert [faults.count_call(action) is not None for action in "ABAA"] == [True, False, True, False]
    assert faults.report() == []
    assert faults.calls() == {"A": 3, "B": 1}


def test_what_is_not_written_as_it_stands_is_said():
    text = "#cloud-config\nwrite_files:\n- {path: /a, content: aGVsbG8=, encoding: b64}\n"
    assert "encoding is not supported" in read_user_data(text.encode()).warnings[0]


def test_permissions_are_octal_as_text_and_as_yaml_integer():
    text = "#cloud-config\nwrite_files:\n- {path: /a, permissions: '0600'}\n- {path: /b, permissions: 0600}\n"
    assert [file.mode for file in read_user_data(text.encode()).files] == [0o600, 0o600]


@pytest.mark.parametrize(
    "content", [b"#cloud-config\n[", b"#cloud-config\n- list\n", b"\x1f\x8bbroken", b"hello"]
)
def test_unreadable_user_data_gives_a_warning(content):
    assert read_user_data(content).warnings


def test_user_keys_are_read_from_users_too():
    users = "users:\n- default\n- {name: u, ssh_authorized_keys: [k2]}\n"
    text = f"#cloud-config\n{users}ssh_authorized_keys: [k1]\n"
    assert read_user_data(text.encode()).authorized_keys == ("k1", "k2")


def test_prices_of_the_catalog():
    catalog = Catalog()
    price = on_demand_price(catalog, "c7i.4xlarge", "us-east-1").hourly_usd
    assert price == Decimal("0.714")
    assert on_demand_price(catalog, "c7i.4xlarge", "eu-north-1").hourly_usd == price
    assert on_demand_price(catalog, "c99.huge", "us-east-1") is None
    assert price * Decimal("0.29") < spot_usd(catalog, "c7i.4xlarge", "us-east-1a") < price * Decimal("0.46")


def test_state_is_read_back_and_anything_else_is_none(tmp_path):
    state = SiteState(pid=1, url="u", token="t", started_at="s")
    path = tmp_path / "endpoint.json"
    assert read_state(path) is None
    write_state(path, state)
    assert read_state(path) == state
    path.write_text('{"schema": 99, "pid": 1, "url": "u", "token": "t", "started_at": "s"}')
    assert read_state(path) is None
    path.write_text("{")
    assert read_state(path) is None


def test_one_address_has_many_ports():
    pool = AddressPool(many=False)
    taken = [pool.take() for _ in range(3)]
    assert {listeners.host for listeners in taken} == {"127.0.0.1"}
    assert len({port for ports in taken for port in (ports.ssh_port, ports.metadata_port)}) == 6
    for listeners in taken:
        listeners.close()


def test_many_addresses_have_one_port():
    pools = AddressPool(many=True), AddressPool(many=True)
    taken = [pool.take() for pool in pools for _ in range(3)]
    assert len({listeners.host for listeners in taken}) == 6
    assert len({listeners.ssh_port for listeners in taken[:3]}) == 1
    for listeners in taken:
        listeners.close()


def test_an_instance_gets_its_packages_from_where_this_machine_does(tmp_path):
    own = {
        "HOME": str(tmp_path),
        "PIP_FIND_LINKS": "/wheels",
        "PIP_TARGET": "/x",
        "AWS_SECRET_ACCESS_KEY": "s",
    }
    assert package_sources(own) == {"PIP_FIND_LINKS": "/wheels"}
    config = tmp_path / ".config" / "pip" / "pip.conf"
    config.parent.mkdir(parents=True)
    config.touch()
    assert package_sources(own) == {"PIP_FIND_LINKS": "/wheels", "PIP_CONFIG_FILE": str(config)}
    assert package_sources({**own, "PIP_CONFIG_FILE": "/dev/null"})["PIP_CONFIG_FILE"] == "/dev/null"


def test_idle_threads_of_an_instance_wait_as_those_of_its_daemon(tmp_path, monkeypatch):
    monkeypatch.setenv("OMP_WAIT_POLICY", "PASSIVE")
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    monkeypatch.delenv("GOMP_SPINCOUNT", raising=False)
    environment = instance_environment(tmp_path, cache=tmp_path, metadata_url="http://x", user="ubuntu")
    assert {name: value for name, value in environment.items() if "OMP" in name} == {
        "OMP_WAIT_POLICY": "PASSIVE"
    }


@pytest.mark.parametrize("rounds", range(8))
def test_a_process_whose_start_is_cancelled_is_killed(rounds):
    """However far the start has come, counted in rounds of the event loop; its child reads its input."""

    async def cancel_start(held):
        options = {"stdin": subprocess.PIPE, "pass_fds": [held]}
        starting = asyncio.create_task(start_process("/bin/sh", "-c", "cat; :", **options))
        for _ in range(rounds):
            await asyncio.sleep(0)
        starting.cancel()
        await asyncio.wait([starting], timeout=LIMIT_S)
        assert starting.done()
        if not starting.cancelled():
            starting.result().stdin.close()
        os.close(held)
        return await asyncio.to_thread(select.select, [open_while_it_runs], [], [], LIMIT_S)

    open_while_it_runs, held = os.pipe()
    assert asyncio.run(cancel_start(held))[0], "the process runs on"
    os.close(open_while_it_runs)


def test_a_folder_that_is_written_to_meanwhile_is_removed(tmp_path, monkeypatch):
    root, removals = tmp_path / "i-1", []
    (root / "work/usr/work").mkdir(parents=True, mode=0)

    remove = instance_tree._remove

    def remove_and_write(name, *, cwd):
        remove(name, cwd=cwd)
        removals.append(name)
        if len(removals) == 1:
            (root / "rootfs").mkdir(parents=True)

    monkeypatch.setattr(instance_tree, "_remove", remove_and_write)
    assert processes.remove_root(root)
    assert not root.exists()
    assert len(removals) == 2


PODMAN = """\
#!/bin/sh
echo "$@" >> {notes}
case "$1" in
  ps) [ -e {folder}/gone ] || echo c-1;;
  rm) [ -e {folder}/tried ] && touch {folder}/gone; touch {folder}/tried; [ -e {folder}/gone ];;
esac
"""


def test_the_containers_of_an_instance_go_with_its_folder(tmp_path, monkeypatch):
    """Podman refuses the first time, as where the watcher of the container was killed."""
    root, notes, programs = tmp_path / "i-1", tmp_path / "notes", tmp_path / "programs"
    (root / processes.CONTAINERS).parent.mkdir(parents=True)
    (root / processes.CONTAINERS).touch()
    programs.mkdir()
    (programs / "podman").write_text(PODMAN.format(notes=notes, folder=tmp_path))
    (programs / "podman").chmod(0o755)
    monkeypatch.setenv("PATH", str(programs), prepend=":")
    assert processes.remove_root(root)
    listed, removed = f"ps --all --quiet --filter label=DLCLOUD_ROOT={root}", "rm --force c-1"
    assert notes.read_text().splitlines() == [listed, removed, listed, removed, listed]


def ssh_server(folder):
    return SshServer(
        host_key=asyncssh.generate_private_key("ssh-ed25519"),
        env={},
        container=Container(root=folder, interpreter="", owner=0),
        files=LoginFiles(tree=InstanceTree(folder), authorized_keys={}, nologin="nologin"),
        interpreter="",
    )


@pytest.mark.parametrize("kind", ["ssh", "metadata"])
def test_a_cancelled_opening_leaves_the_loop_nothing_of_its_socket(kind, tmp_path):
    """Else the next file with the number of its descriptor, as the output of a session, is never read."""

    async def left_after(turns, pool):
        listeners = pool.take()
        socket = getattr(listeners, kind)
        server = (
            ssh_server(tmp_path) if kind == "ssh" else MetadataService(documents=dict, power=print, secret="")
        )
        descriptor, opening = socket.fileno(), asyncio.ensure_future(server.open(socket))
        for _ in range(turns):
            await asyncio.sleep(0)
        is_open = opening.done()
        opening.cancel()
        await asyncio.gather(opening, return_exceptions=True)
        await server.close()
        listeners.close()
        return is_open, asyncio.get_running_loop().remove_reader(descriptor)

    async def check():
        pool, turns, is_open = AddressPool(many=True), 0, False
        while not is_open:
            is_open, is_left = await left_after(turns, pool)
            assert not is_left, turns
            turns += 1

    asyncio.run(asyncio.wait_for(check(), LIMIT_S))
