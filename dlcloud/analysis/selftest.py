"""What one cheap round trip on an account proves: the facts that it collects, and the row of each risk.

`app/account/selftest.py` runs the commands and keeps their documents as `Observations`; `judge` turns them
into a finding for each entry of `RISKS`, and `report/account.py` prints these. A risk is confirmed only by a
fact that was seen: without one it is "not seen", or failed with the command that should have shown it.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from enum import StrEnum
from typing import Any

from dlcloud.model.money import money
from dlcloud.model.untrusted import parse_json, printable

MAX_HOURS = Decimal("0.25")
"""After this its instances end themselves."""

SWITCH_S = float(MAX_HOURS) * 3600 + 600
"""By then an instance whose launcher was killed is to be gone."""

MAX_USD = {
    "round-trip": Decimal("0.05"),
    "switch": Decimal("0.05"),
    "policy": Decimal("0.05"),
    "detach": Decimal("0.05"),
    "batch": Decimal("0.10"),
    "gpu": Decimal("0.25"),
}
"""The parts, and the most that each may cost."""

RECIPES = {
    "round-trip": {"on-demand": 2, "spot": 1},
    "switch": {"on-demand": 1},
    "policy": {"on-demand": 2, "spot": 1},
    "detach": {"detach": 1},
    "batch": {"batch": 2},
    "gpu": {"gpu": 1},
}
"""The recipes of each part, with the number of instances that each has at most."""

INSTANCE_TYPES = ("t3.micro", "t4g.micro")
"""The cheapest types with memory for a virtual environment, x86_64 and arm64."""

_INSTALL = "sudo apt-get install -y -q --no-install-recommends hello"
"""Proves that packages can be installed at first boot; the local EC2 shares the packages of its machine."""

RESULT = "selftest.txt"
"""What the command of the part `detach` writes once GO is there."""
GO = "selftest-go"
_WAITS = f"until [ -e $HOME/{GO} ]; do sleep 0.2; done; echo done > {RESULT}"

GPU_RESULT = "selftest.json"
GPU_PROBE = """
import json, os, subprocess
def ask(*words):
    try:
        return subprocess.run(words, stdout=subprocess.PIPE, timeout=60).stdout.decode().strip()
    except (OSError, subprocess.SubprocessError):
        return ""
try:
    import torch
    gpu = torch.ones(1000, device="cuda").sum().item() == 1000 and torch.cuda.get_device_name(0)
    computed = "PyTorch %s on %s" % (torch.__version__, gpu) if gpu else "a wrong sum"
except Exception as error:
    computed = "failed: %s" % error
data = os.path.expanduser("~/dlcloud/data")
with open("selftest.json", "w") as result:
    json.dump({
        "driver": ask("nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"),
        "computed": computed, "data": os.path.realpath(data), "is_store": os.path.islink(data),
    }, result)
"""
"""Run by the environment's Python; writes one JSON object to GPU_RESULT."""

PROBE = """
import glob, json, os, platform, shutil, subprocess
def ask(*words):
    try:
        return subprocess.run(words, stdout=subprocess.PIPE, timeout=10).stdout.decode().strip()
    except (OSError, subprocess.SubprocessError):
        return ""
root = os.environ.get("DLCLOUD_ROOT", "")
mine = (root + "/var/lib/dlcloud/watchdog.py").encode()
running = 0
for path in glob.glob("/proc/[0-9]*/cmdline"):
    try:
        words = open(path, "rb").read().split(b"\\0")
    except OSError:
        continue
    running += mine in words and b"python" in words[0]
print(json.dumps({
    "python": platform.python_version(), "machine": platform.machine(), "watchdogs": running,
    "root_gib": round(shutil.disk_usage("/").total / 2**30, 1),
    "nologin": os.path.exists(root + "/run/nologin"),
    "timer": "" if root else ask("systemctl", "is-active", "dlcloud-life.timer"),
    "systemd": "" if root else ask("systemctl", "--version").partition(" (")[0],
}))
"""
"""Run by an instance's own Python; prints one JSON object."""


def read_probe(text: str) -> dict[str, Any]:
    """Return an instance's answer to `PROBE`.

    Raises:
        ValueError: It is none.
    """
    answer = parse_json(text)
    kinds = {"python": str, "machine": str, "watchdogs": int, "root_gib": int | float, "nologin": bool}
    kinds |= {"timer": str, "systemd": str}
    if not isinstance(answer, dict) or not all(isinstance(answer.get(k), kind) for k, kind in kinds.items()):
        raise ValueError(f"no answer of the probe: {printable(text[:80])!r}")
    return {name: answer[name] for name in kinds}


class SelftestVerdict(StrEnum):
    """What a self-test knows of one risk."""

    HELD = "held"
    FAILED = "FAILED"
    NOT_SEEN = "not seen"


@dataclass(slots=True, kw_only=True)
class Observations:
    """What a self-test has collected so far, as the documents of the commands that it ran.

    Attributes:
        checks: Verdict and detail of each check of `doctor`.
        members: Records of `status`, of each cluster while it was up.
        runs: Records of `up`, of both markets.
        probes: Answers of the instances to `PROBE`.
        resize_s: Seconds of the growth by an instance.
        down_s: Seconds of each `down`: until EC2 says that all instances are terminated.
        notice: A spot instance's metadata after an interruption, which only the local EC2 gives at no cost.
        switch_s: Seconds from the end of the launcher, by SIGKILL, to that of its instance; None: not seen.
        role: The role under which the commands ran, which has the printed policy and no other; empty: none.
        controller_s: Seconds from the end of a detached cluster's controller, by SIGKILL, to the next one.
        result: What another home downloaded of the detached command.
        trials: Records of the experiment on AWS Batch.
        gpu: What a GPU instance said to GPU_PROBE.
        left: Records of `gc` at the end; None: it was not asked.
        errors: Messages of the commands that failed.
    """

    checks: dict[str, tuple[str, str]] = field(default_factory=dict)
    members: list[Mapping[str, Any]] = field(default_factory=list)
    runs: list[Mapping[str, Any]] = field(default_factory=list)
    probes: list[Mapping[str, Any]] = field(default_factory=list)
    resize_s: float | None = None
    down_s: list[float] = field(default_factory=list)
    notice: str | None = None
    switch_s: float | None = None
    role: str = ""
    controller_s: float | None = None
    result: str | None = None
    trials: Sequence[Mapping[str, Any]] = ()
    gpu: Mapping[str, Any] = field(default_factory=dict)
    left: Sequence[Mapping[str, Any]] | None = None
    errors: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One risk of a first run, and what the self-test saw of it."""

    number: str
    claim: str
    verdict: SelftestVerdict
    evidence: str


def recipe_text(kind: str, *, cloud: str, region: str, instance_type: str, results: str = "") -> str:
    """Return a recipe of RECIPES as JSON, which YAML includes.

    Args:
        kind: A market, or a part.
        cloud: `aws` or `local`.
        region: Where it launches.
        instance_type: Of its instances; those of `gpu` and `batch` are given.
        results: The folder in S3 for the results of `batch`.
    """
    most_usd = min(MAX_USD[part] for part, kinds in RECIPES.items() if kind in kinds)
    instances = {"types": [instance_type], "market": "on-demand", "disk_gib": 8}
    recipe: dict[str, Any] = {
        "name": f"selftest-{kind}",
        "cloud": cloud,
        "region": region,
        "instances": instances,
        "budget": {
            "max_hours": float(MAX_HOURS),
            "idle_minutes": 15,
            "max_usd": float(most_usd),
        },
    }
    if kind == "detach":
        recipe["workload"] = {"command": _WAITS}
    elif kind == "batch":
        instances |= {"types": ["c5.large", "c6i.large"], "market": "spot", "disk_gib": 30}
        recipe["workload"] = {"command": "echo score $DLCLOUD_VALUE_X", "facts": {"score": "score (.*)"}}
        recipe |= {"experiment": {"list": [{"x": 1}, {"x": 2}], "metric": "score"}, "results": results}
    elif kind == "gpu":
        instances |= {"types": ["g4dn.xlarge"], "market": "spot", "disk_gib": 75}
        recipe["workload"] = {"command": "python3 probe.py", "files": "probe.py"}
        recipe["data"] = [{"from": "data", "to": "data/selftest"}]
        recipe |= {"setup": {"requirements": ["torch", "numpy"]}} if cloud == "aws" else {}
    else:
        instances["market"] = kind
        recipe["setup"] = {"commands": _INSTALL if cloud == "aws" else "true"}
        recipe["workload"] = {"command": "python3 --version"}
    return json.dumps(recipe, indent=1)


def judge(observations: Observations) -> list[Finding]:
    """Return a finding for each risk; one whose facts are missing is not seen, or failed with its command."""
    findings = []
    for number, claim, _, observe in RISKS:
        verdict, evidence = observe(observations)
        findings.append(Finding(number=number, claim=claim, verdict=verdict, evidence=evidence))
    return findings


Judged = tuple[SelftestVerdict, str]
_UNSEEN = (SelftestVerdict.NOT_SEEN, "the run did not come so far")


def _held(good: object, evidence: str) -> Judged:
    return SelftestVerdict.HELD if good else SelftestVerdict.FAILED, evidence


def _market(market: str) -> Callable[[Observations], Judged]:
    """True if an instance of a market was up."""

    def observe(observations: Observations) -> Judged:
        ids = [member["instance_id"] for member in observations.members if member["market"] == market]
        return (SelftestVerdict.HELD, f"launched {ids[0]}") if ids else _UNSEEN

    return observe


def _disk(observations: Observations) -> Judged:
    if not observations.probes:
        return _UNSEEN
    sizes = [probe["root_gib"] for probe in observations.probes]
    return SelftestVerdict.HELD, f"EC2 took the volume; the root file system has {min(sizes):g} GiB"


def _boot(observations: Observations) -> Judged:
    seconds = [run["boot_seconds"] for run in observations.runs if run.get("boot_seconds") is not None]
    return (SelftestVerdict.HELD, f"{max(seconds)} s from launch to login at most") if seconds else _UNSEEN


def _set_up(observations: Observations) -> Judged:
    seconds = [run["setup_seconds"] for run in observations.runs if run.get("setup_seconds") is not None]
    return (SelftestVerdict.HELD, f"set-up commands took {max(seconds)} s at most") if seconds else _UNSEEN


def _address(observations: Observations) -> Judged:
    if not observations.members:
        return _UNSEEN
    hosts = [member["host"] for member in observations.members]
    return _held(all(hosts), f"reached at {', '.join(dict.fromkeys(filter(None, hosts)))}")


def _logins(observations: Observations) -> Judged:
    if not observations.probes:
        return _UNSEEN
    refused = sum(probe["nologin"] for probe in observations.probes)
    return _held(not refused, "no /run/nologin" if not refused else f"/run/nologin on {refused} instance(s)")


def _watchdog(observations: Observations) -> Judged:
    if not observations.probes:
        return _UNSEEN
    running = sorted({probe["watchdogs"] for probe in observations.probes})
    return _held(running == [1], f"watchdogs per instance: {', '.join(map(str, running))}")


def _python(observations: Observations) -> Judged:
    versions = sorted({f"Python {probe['python']} on {probe['machine']}" for probe in observations.probes})
    return (SelftestVerdict.HELD, ", ".join(versions)) if versions else _UNSEEN


def _check(name: str) -> Callable[[Observations], Judged]:
    """Take a check of `doctor` as the evidence."""

    def observe(observations: Observations) -> Judged:
        verdict, detail = observations.checks.get(name, ("", ""))
        if verdict in {"", "unknown"}:
            return SelftestVerdict.NOT_SEEN, detail or "doctor did not ask"
        return _held(verdict == "ok", detail)

    return observe


def _scores(observations: Observations) -> Judged:
    if not observations.checks:
        return _UNSEEN
    verdict, detail = observations.checks.get("spot placement score", ("", ""))
    return _held(verdict != "ok", detail or "left out")


def _types(observations: Observations) -> Judged:
    verdict, detail = observations.checks.get("types", ("", ""))
    return _held("(EC2)" in detail, detail) if verdict else _UNSEEN


def _bill(observations: Observations) -> Judged:
    amounts = [Decimal(run["run_usd"]) for run in observations.runs if run.get("run_usd") is not None]
    if not amounts:
        return _UNSEEN
    sources = sorted({str(run["price_source"]) for run in observations.runs})
    return (
        SelftestVerdict.HELD,
        f"{money(sum(amounts, Decimal(0)))} USD by {', '.join(sources)}; compare with the bill",
    )


def _resize(observations: Observations) -> Judged:
    return (
        _UNSEEN
        if observations.resize_s is None
        else (SelftestVerdict.HELD, f"one more in {observations.resize_s:.0f} s")
    )


def _timer(observations: Observations) -> Judged:
    """Judge the timer of the instance's end, which an image without cloud-init's per-boot scripts lacks."""
    timers = [(probe["timer"], probe["systemd"]) for probe in observations.probes if probe["systemd"]]
    if not timers:
        return SelftestVerdict.NOT_SEEN, "the instances have no systemd"
    systems = ", ".join(sorted({system for _, system in timers}))
    states = sorted({state or "missing" for state, _ in timers})
    return _held(states == ["active"], f"dlcloud-life.timer is {', '.join(states)}; {systems}")


def _ends(observations: Observations) -> Judged:
    if not observations.down_s:
        return _UNSEEN
    return SelftestVerdict.HELD, f"terminated within {max(observations.down_s):.0f} s"


def _interruption(observations: Observations) -> Judged:
    if observations.notice is None:
        return SelftestVerdict.NOT_SEEN, "EC2 sends notices on demand for a fee only"
    return _held("terminate" in observations.notice, observations.notice.strip())


def _switch(observations: Observations) -> Judged:
    if observations.switch_s is None:
        return SelftestVerdict.NOT_SEEN, "the launcher was not killed: --part switch"
    return _held(
        observations.switch_s <= SWITCH_S,
        f"gone {observations.switch_s:.0f} s after its launcher was killed",
    )


def _policy(observations: Observations) -> Judged:
    if not observations.role:
        return SelftestVerdict.NOT_SEEN, "the commands ran with your own rights: --part policy"
    denied = [error for error in observations.errors if "denied" in error or "not authorized" in error]
    return _held(
        not denied and observations.down_s, denied[0] if denied else f"all ran as {observations.role}"
    )


def _controller(observations: Observations) -> Judged:
    if observations.controller_s is None:
        return SelftestVerdict.NOT_SEEN, "no controller was killed: --part detach"
    return _held(
        observations.result == "done",
        f"again in charge after {observations.controller_s:.0f} s; elsewhere: {observations.result}",
    )


def _batch(observations: Observations) -> Judged:
    if not observations.trials:
        return SelftestVerdict.NOT_SEEN, "no trials were run: --part batch"
    done = [trial for trial in observations.trials if trial["state"] == "done"]
    types = ", ".join(sorted({str(trial["instance_type"]) for trial in done}))
    return _held(
        len(done) == len(observations.trials), f"{len(done)} of {len(observations.trials)} on {types}"
    )


def _gpu(key: str, good: Callable[[Mapping[str, Any]], object]) -> Callable[[Observations], Judged]:
    """Judge what a GPU instance said; a rehearsal's has no GPU and no instance store."""

    def observe(observations: Observations) -> Judged:
        if not observations.gpu:
            return SelftestVerdict.NOT_SEEN, "no GPU instance was launched: --part gpu"
        answer = printable(str(observations.gpu[key]))
        if observations.gpu["rehearsal"]:
            return SelftestVerdict.NOT_SEEN, f"a rehearsal has no GPU: {answer or 'no driver'}"
        return _held(good(observations.gpu), answer or "no driver")

    return observe


def _nothing_left(observations: Observations) -> Judged:
    if observations.left is None:
        return _UNSEEN
    names = ", ".join(str(record["id"]) for record in observations.left)
    return _held(not observations.left, names or "nothing is left over")


def _no_error(observations: Observations) -> Judged:
    if not observations.errors:
        return SelftestVerdict.NOT_SEEN, "EC2 refused nothing"
    return SelftestVerdict.FAILED, observations.errors[0]


def _unseen(why: str) -> Callable[[Observations], Judged]:
    return lambda _: (SelftestVerdict.NOT_SEEN, why)


RISKS: tuple[tuple[str, str, str, Callable[[Observations], Judged]], ...] = (
    ("a1", "the root volume holds the image's snapshot", "EC2 accepted the volume", _disk),
    ("a2", "these permissions allow spot instances", "a spot instance was launched", _market("spot")),
    ("a3", "an instance boots in the time that it is given", "seconds from launch to login", _boot),
    ("a4", "packages can be installed at first boot", "a package was installed", _set_up),
    ("a5", "the account has a network to launch in", "the default subnets", _check("default network")),
    ("a6", "logins are open until the instance's end", "`/run/nologin`, on each instance", _logins),
    ("1", "a refusal of EC2 is reported as what it is", "the messages of refusals, if any", _no_error),
    ("2", "the instances of a training share a zone", "nothing", _unseen("no training was run")),
    ("3", "new resources are awaited until EC2 shows them", "the launch went through", _market("on-demand")),
    ("4", "a bad instance is replaced", "nothing", _unseen("no instance was bad")),
    ("5", "apt's locks at first boot are awaited", "a package was installed", _set_up),
    ("6", "one watchdog runs on each instance", "its processes", _watchdog),
    ("7", "each instance has an address that can be reached", "the addresses", _address),
    ("8", "SSH is let in from this machine's address", "the address that is let in", _check("SSH from")),
    ("9", "EC2 describes the type", "EC2's description", _types),
    ("10", "placement scores are left out below three types", "that none are shown", _scores),
    ("11", "the bill is what was computed", "the amount, to be compared with the bill", _bill),
    ("12", "no living worker is declared dead", "nothing", _unseen("no training was run")),
    ("13", "the image's Python runs dlcloud's programs", "its version", _python),
    ("14", "each error code of EC2 has its meaning", "the messages of refusals, if any", _no_error),
    ("15", "the vCPU quota is known", "the quota", _check("vCPU quota")),
    ("16", "a cluster grows", "seconds until one more instance is ready", _resize),
    ("17", "nothing is left over", "`dlcloud gc`, roles included", _nothing_left),
    ("18", "an interruption notice reaches the instance", "a notice, on the local EC2 only", _interruption),
    ("b1", "the account's plan of AWS launches the type", "the plan, of `doctor`", _check("account plan")),
    ("b2", "each instance has the timer of its end", "`dlcloud-life.timer`, and systemd's version", _timer),
    ("b3", "instances end in the time that an end waits", "seconds of `dlcloud down`", _ends),
    ("b4", "EC2's dry run sees what a launch meets", "the dry run, of `doctor`", _check("dry run")),
    ("c1", "an instance ends without its launcher", "`gc`, after SIGKILL (`--part switch`)", _switch),
    (
        "d1",
        "the printed policy is enough",
        "all commands, as a role with it alone (`--part policy`)",
        _policy,
    ),
    (
        "d2",
        "a detached command outlives its controller",
        "its file, elsewhere (`--part detach`)",
        _controller,
    ),
    ("d3", "AWS Batch runs trials on spot", "two trials (`--part batch`)", _batch),
    (
        "e1",
        "the image of GPU types has its driver",
        "`nvidia-smi` (`--part gpu`)",
        _gpu("driver", lambda gpu: gpu["driver"]),
    ),
    (
        "e2",
        "PyTorch computes on the GPU",
        "a sum (`--part gpu`)",
        _gpu("computed", lambda gpu: " on " in gpu["computed"] and not gpu["computed"].startswith("failed")),
    ),
    (
        "e3",
        "data lie on the instance store",
        "the folder's place (`--part gpu`)",
        _gpu("data", lambda gpu: gpu["is_store"]),
    ),
)
"""The risks of a first run on AWS: number, claim, what is looked at, and how it is judged."""
