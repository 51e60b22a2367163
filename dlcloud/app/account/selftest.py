"""`dlcloud selftest`: the cheapest round trip on an account, its parts, and what they prove.

Each part runs commands of dlcloud as a user would, in processes of their own, and keeps their documents as
`Observations`, which `analysis/selftest.py` judges. Whatever happens, `_taking_down` terminates what is up.
"""

import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from types import MappingProxyType
from typing import Any

from dlcloud.analysis.selftest import (
    GO,
    GPU_PROBE,
    GPU_RESULT,
    MAX_HOURS,
    MAX_USD,
    PROBE,
    RECIPES,
    RESULT,
    SWITCH_S,
    Observations,
    SelftestVerdict,
    judge,
    read_probe,
    recipe_text,
)
from dlcloud.app.context import Context
from dlcloud.app.profiles import PROFILE_VARIABLE
from dlcloud.app.terminal.screen import confirm, say
from dlcloud.app.terminal.signals import (
    Termination,
    TerminationAbandonedError,
    TerminationTexts,
    holding,
    raise_on,
    terminations,
)
from dlcloud.cloud.account.roles import IamRoles
from dlcloud.cloud.api.partitions import partition_of
from dlcloud.local.site import (
    ENDPOINT_VARIABLE,
    KEY_ID_VARIABLE,
    SECRET_VARIABLE,
    SESSION_VARIABLE,
    TOKEN_VARIABLE,
)
from dlcloud.model.errors import BudgetError, CloudError, RecipeError
from dlcloud.model.events import Event
from dlcloud.model.money import money
from dlcloud.model.untrusted import printable
from dlcloud.report.account import describe_place, selftest_report
from dlcloud.report.table import Format, render
from dlcloud.resources.texts import iam_policy

_MARKETS = ("on-demand", "spot")
_GRACE_S = 120
ROLE_SETTLES_S = 15.0
"""By then a new role has its policy everywhere, as far as IAM says."""
CONTROLLER_S = 120.0
"""By then a killed controller is in charge again, or has done what is left."""
POLL_S = {"aws": 10.0, "local": 0.2}
_PROGRAM = """
import signal, sys
try:
    from dlcloud.cli.main import main
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    main()
except KeyboardInterrupt:
    sys.exit(130)
"""
"""A command of dlcloud, started with SIGINT blocked: Python prints a traceback of one while it starts."""
_READ_NOTICE = (
    'base="${AWS_EC2_METADATA_SERVICE_ENDPOINT:-http://169.254.169.254}"; base="${base%/}/latest"; '
    'token=$(curl -s -X PUT -H "X-aws-ec2-metadata-token-ttl-seconds: 60" "$base/api/token"); '
    'curl -s -H "X-aws-ec2-metadata-token: $token" "$base/meta-data/spot/instance-action"'
)


def run(
    context: Context,
    *,
    cloud: str,
    region: str,
    instance_type: str,
    part: str,
    results: str,
    yes: bool,
    output: str,
) -> int:
    """Prove that dlcloud works on an account: launch, run, grow and terminate the cheapest instances.

    Args:
        context: Makes the role of the part `policy`, and in a rehearsal the bucket of `batch`.
        cloud: `aws` or `local`.
        region: Where the instances are launched.
        instance_type: Of every instance, except those of `batch` and `gpu`.
        part: One of RECIPES.
        results: The folder in S3 for the results of `batch`.
        yes: Spend money without asking.
        output: The format of the result.
    """
    raise_on(signal.SIGTERM, signal.SIGHUP)
    if part == "batch" and not results:
        if cloud == "aws":
            raise RecipeError(
                "the trials of AWS Batch leave their results in S3", "--results s3://BUCKET/FOLDER"
            )
        results = "s3://selftest/results"
        context.clouds.clients.get(cloud, region).get("s3").create_bucket(Bucket="selftest")
    with tempfile.TemporaryDirectory(prefix="dlcloud-selftest-") as folder:
        trip = RoundTrip(
            context=context,
            cloud=cloud,
            region=region,
            instance_type=instance_type,
            results=results,
            folder=Path(folder),
        )
        place = describe_place(cloud, region)
        say(f"self-test of {place}: asking for types, quotas and prices ...", err=True)
        try:
            most = trip.most_usd(part)
        except CommandFailedError:
            raise CloudError(
                f"the self-test of {place} was not started: {trip.observations.errors[0]}",
                f"dlcloud doctor --cloud {cloud}",
            ) from None
        _confirm(most, limit=MAX_USD[part], is_rehearsal=cloud == "local", yes=yes)
        parts = {
            "round-trip": trip.run,
            "switch": trip.kill_launcher,
            "policy": lambda most: _under_policy(trip, most),
            "detach": trip.kill_controller,
            "batch": trip.run_batch,
            "gpu": trip.run_gpu,
        }
        parts[part](most)
    findings = judge(trip.observations)
    if part != "round-trip":
        findings = [finding for finding in findings if finding.verdict is not SelftestVerdict.NOT_SEEN]
    report = selftest_report(findings, errors=trip.observations.errors, place=place)
    say(render(report, Format(output)))
    return 5 if any(finding.verdict is SelftestVerdict.FAILED for finding in findings) else 0


def _under_policy(trip: "RoundTrip", most_usd: Decimal) -> None:
    """Make the round trip as a role that has the policy which `dlcloud policy` prints, and no other right."""
    context, clients = trip.context, trip.context.clouds.clients.get(trip.cloud, trip.region)
    account = context.clouds.cloud(trip.cloud, trip.region).caller.identity().account
    partition = partition_of(trip.region)
    policy = iam_policy(partition=partition.name, dns_suffix=partition.dns_suffix)
    owner = context.owner(trip.cloud, trip.region)
    roles = IamRoles(clients=clients, control_policy=lambda *_: "", pause=context.clock.sleep)
    say("making a role that has the printed policy only ...", err=True)
    name = f"selftest-{time.time_ns() % 10**6}"
    with roles.session_under(policy, account, name=name, tags=owner.tags) as session:
        keys = (session.key_id, session.secret, session.token)
        names = (KEY_ID_VARIABLE, SECRET_VARIABLE, SESSION_VARIABLE)
        if trip.cloud == "aws":
            names = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
            context.clock.sleep(ROLE_SETTLES_S)
        else:
            trip.environment |= trip.local_variables()
        trip.environment |= dict(zip(names, keys, strict=True))
        # No profile may put others in their place.
        trip.environment |= {
            "DLCLOUD_CONFIG": str(trip.folder / "none.yaml"),
            **dict.fromkeys(("AWS_PROFILE", "AWS_DEFAULT_PROFILE", PROFILE_VARIABLE), ""),
        }
        trip.observations.role = session.arn
        trip.run(most_usd)


def _confirm(usd: Decimal, *, limit: Decimal, is_rehearsal: bool, yes: bool) -> None:
    """Show the most that the self-test may cost, and ask.

    Raises:
        BudgetError: It could cost more than the limit, or the answer is no.
    """
    message = f"the self-test costs at most {money(usd)} USD"
    if usd > limit:
        raise BudgetError(f"{message}, its limit is {limit}", "choose a smaller --type")
    say(f"{message} (rehearsal: not billed)" if is_rehearsal else message, err=True)
    if is_rehearsal or yes:
        return
    if not sys.stdin.isatty():
        raise BudgetError("this spends money, and stdin is not a terminal", "pass --yes to confirm")
    confirm("Continue?")


class CommandFailedError(Exception):
    """A command of the round trip has failed; its message is among the errors seen."""


@dataclass(kw_only=True)
class RoundTrip:
    """The commands of a self-test, each run as a user runs it, and what they answered.

    Args:
        context: Knows the home, and the local EC2.
        cloud: `aws` or `local`.
        region: Where the instances are launched.
        instance_type: Of every instance, except those of `batch` and `gpu`.
        results: The folder in S3 for the results of `batch`.
        folder: For the recipes.
        environment: Of the commands, where it is another than this process's; empty values remove a variable.
    """

    context: Context
    cloud: str
    region: str
    instance_type: str
    results: str
    folder: Path
    environment: dict[str, str] = field(default_factory=dict)
    observations: Observations = field(init=False, default_factory=Observations)
    _termination: Termination | None = field(init=False, default=None)

    def most_usd(self, part: str) -> Decimal:
        """Return the most that the instances of a part may cost."""
        total = Decimal(0)
        for kind, count in RECIPES[part].items():
            options = ("--on", "batch") if kind == "batch" else ()
            plan = self._ask("up", self._recipe(kind), *options, "--dry-run")["plan"]
            total += Decimal(plan["worst_case_usd"]) * count
        return total

    def kill_launcher(self, most_usd: Decimal) -> None:
        """Launch an instance, kill its launcher as nothing can catch it, and wait until the instance is gone.

        Args:
            most_usd: What the instance may cost at most.
        """
        name = f"selftest-switch-{time.time_ns() % 10**6}"
        with self._taking_down([name], most_usd):
            with holding():
                launcher = start_command(["up", self._recipe("on-demand"), "--keep", "--yes", "--name", name])
            try:
                say("launching an instance ...", err=True)
                self._await(SWITCH_S, lambda: self._living(name) or launcher.poll() is not None)
                self.observations.members = self._living(name)
            finally:
                launcher.kill()
                launcher.communicate()
            if not self.observations.members:
                self.observations.errors.append("`up` launched nothing")
                raise CommandFailedError
            say("its launcher was killed: waiting until the instance terminates itself ...", err=True)
            killed = time.monotonic()
            self._await(2 * SWITCH_S, lambda: not self._living(name))
            self.observations.switch_s = time.monotonic() - killed

    def kill_controller(self, most_usd: Decimal) -> None:
        """Leave a command to its instance, kill its controller, and download the result from another home.

        Args:
            most_usd: What the instance may cost at most.
        """
        name = f"selftest-detach-{time.time_ns() % 10**6}"
        # No process that only names it: the brackets are not in what they match.
        controller = f"[c]ontrol .*--name {name}"
        elsewhere = {"DLCLOUD_HOME": str(self.folder / "elsewhere")}
        if self.cloud == "local":
            elsewhere |= self.local_variables()

        def controllers() -> str:
            (answer,) = self._ask("exec", name, "--", f"pgrep -f '{controller}' || true")["records"]
            return str(answer["stdout"]).strip()

        with self._taking_down([name], most_usd):
            say("launching an instance, which then controls itself ...", err=True)
            self._ask("up", self._recipe("detach"), "--detach", "--yes", "--name", name)
            self.observations.members = self._living(name)
            first = controllers()
            say("killing its controller ...", err=True)
            self._ask("exec", name, "--", f"pkill -9 -f '{controller}'")
            killed = time.monotonic()
            self._await(CONTROLLER_S, lambda: controllers() not in {"", first})
            self.observations.controller_s = time.monotonic() - killed
            self._ask("exec", name, "--", f"touch $HOME/{GO}")
            self.environment |= elsewhere
            try:
                self._await(CONTROLLER_S, lambda: self._is_ready(name))
                self._ask("down", name, "--yes")
            finally:  # this home terminates what the other one has left
                for variable in elsewhere:
                    del self.environment[variable]
            files = list((self.folder / "elsewhere").glob(f"runs/*/files/{RESULT}"))
            self.observations.result = printable(files[0].read_text().strip()) if files else "nothing"

    def _is_ready(self, name: str) -> bool:
        """True once the work of a detached cluster is done."""
        return any(record["cluster_state"] == "ready" for record in self._ask("status", name)["records"])

    def local_variables(self) -> dict[str, str]:
        """Return the variables by which another home uses this one's local EC2."""
        endpoint = self.context.local_endpoint()
        key_id, secret = endpoint.owner_key()
        place = {ENDPOINT_VARIABLE: endpoint.url, TOKEN_VARIABLE: endpoint.control.token}
        return place | {KEY_ID_VARIABLE: key_id, SECRET_VARIABLE: secret}

    def run_batch(self, most_usd: Decimal) -> None:
        """Run two trials on spot instances of AWS Batch, which ends with them.

        Args:
            most_usd: What the instances may cost at most.
        """
        name = f"selftest-batch-{time.time_ns() % 10**6}"
        with self._taking_down([name], most_usd):
            say("running two trials on AWS Batch, some minutes ...", err=True)
            result = self._ask("up", self._recipe("batch"), "--on", "batch", "--yes", "--name", name)
            self.observations.trials = result["records"]

    def run_gpu(self, most_usd: Decimal) -> None:
        """Ask a GPU instance on spot for its driver, a sum of PyTorch and the place of its data.

        Args:
            most_usd: What the instance may cost at most.
        """
        name = f"selftest-gpu-{time.time_ns() % 10**6}"
        with self._taking_down([name], most_usd):
            say("launching a GPU instance, and installing PyTorch on it ...", err=True)
            result = self._ask("up", self._recipe("gpu"), "--keep", "--yes", "--name", name)
            self.observations.runs += result["records"]
            self.observations.members = self._living(name)
            files = list(self.context.paths.runs.glob(f"{name}*/files/{GPU_RESULT}"))
            if not files:
                self.observations.errors.append("`up` downloaded no result of the GPU's probe")
                raise CommandFailedError
            answer = _read_document(files[0].read_text())
            self.observations.gpu = answer | {"rehearsal": self.cloud == "local"}

    def _living(self, name: str) -> list[Mapping[str, Any]]:
        """Return the instances of a cluster that EC2 says are alive."""
        records = self._ask("status")["records"]
        return [one for one in records if one["cluster"] == name and one["state"] in {"pending", "running"}]

    def _await(self, seconds: float, is_true: Callable[[], object]) -> None:
        """Wait until something is true, or the time is over."""
        ends_at = time.monotonic() + seconds
        while not is_true() and time.monotonic() < ends_at:
            time.sleep(POLL_S[self.cloud])

    def run(self, most_usd: Decimal) -> None:
        """Run all commands; the first one that fails ends the test, after everything is taken down.

        Args:
            most_usd: What the instances may cost at most.
        """
        clusters = {market: f"selftest-{market}-{time.time_ns() % 10**6}" for market in _MARKETS}
        with self._taking_down(clusters.values(), most_usd):
            self._check_account()
            for market, name in clusters.items():
                self._launch(market, name)
            self._grow(clusters["on-demand"])
            if self.cloud == "local":
                self._interrupt(clusters["spot"])

    @contextmanager
    def _taking_down(self, names: Collection[str], most_usd: Decimal) -> Iterator[None]:
        """Terminate the clusters when the block ends, whatever happens: no signal breaks that off."""
        self._termination = termination = _termination_of(names, most_usd)
        with terminations.pending(termination):
            try:
                yield
            except CommandFailedError:
                pass
            finally:
                if not terminations.are_abandoned:
                    with terminations.running(termination):
                        self._take_down(names)

    def _check_account(self) -> None:
        records = self._ask("doctor", self._recipe("spot"), "--cloud", self.cloud)["records"]
        self.observations.checks = {
            record["check"]: (record["verdict"], record["detail"]) for record in records
        }

    def _launch(self, market: str, name: str) -> None:
        options = ("--keep", "--yes", "--name", name)
        self.observations.runs += self._ask("up", self._recipe(market), *options)["records"]
        self._look(name)

    def _grow(self, name: str) -> None:
        started = time.monotonic()
        self._ask("resize", name, "2", "--yes")
        self.observations.resize_s = time.monotonic() - started
        self._look(name)

    def _look(self, name: str) -> None:
        """Add a cluster's instances, and what each says of itself."""
        records = self._ask("status")["records"]
        self.observations.members += [record for record in records if record["cluster"] == name]
        for answer in self._ask("exec", name, f"python3 -I -S -c {shlex.quote(PROBE)}")["records"]:
            try:
                self.observations.probes.append(read_probe(answer["stdout"]))
            except ValueError as error:
                self.observations.errors.append(f"{answer['instance_id']}: {error}")

    def _interrupt(self, name: str) -> None:
        """Send a notice to the spot instance; only the local EC2 does that for nothing."""
        instance_id = next(
            record["instance_id"] for record in self.observations.members if record["cluster"] == name
        )
        self._ask("local", "interrupt", instance_id, "--grace", str(_GRACE_S))
        (answer,) = self._ask("exec", name, _READ_NOTICE)["records"]
        self.observations.notice = printable(answer["stdout"])

    def _take_down(self, names: Collection[str]) -> None:
        """Terminate what is still up, and look for what is left of it."""
        status = self._attempt("status") or {"records": ()}
        for name in sorted({record["cluster"] for record in status["records"]} & set(names)):
            started = time.monotonic()
            if self._attempt("down", name) is not None:
                self.observations.down_s.append(time.monotonic() - started)
        ids = sorted({member["cluster_id"] for member in self.observations.members})
        if ids:
            left = self._attempt("gc", *ids, "--dry-run", "--cloud", self.cloud, "--region", self.region)
            self.observations.left = None if left is None else left["records"]

    def _recipe(self, kind: str) -> str:
        path = self.folder / f"{kind}.yaml"
        if kind == "gpu":
            (self.folder / "probe.py").write_text(GPU_PROBE)
            (self.folder / "data").mkdir(exist_ok=True)
            (self.folder / "data" / "set").write_text("a set of data\n")
        place = {"cloud": self.cloud, "region": self.region, "results": self.results}
        path.write_text(recipe_text(kind, instance_type=self.instance_type, **place))
        return str(path)

    def _ask(self, *arguments: str) -> Mapping[str, Any]:
        """Run a command of dlcloud; return its result.

        Raises:
            CommandFailedError: It failed.
        """
        result = self._attempt(*arguments)
        if result is None:
            raise CommandFailedError
        return result

    def _attempt(self, *arguments: str) -> Mapping[str, Any] | None:
        """Run a command of dlcloud; return its result, if any. A failure is added to the errors seen."""
        options = ["--output", "json"]
        position = arguments.index("--") if "--" in arguments else len(arguments)
        words = [*arguments[:position], *options, *arguments[position:]]
        text, status = _run_command(words, self._termination, self.environment)
        document = _read_document(text)
        if status:
            error = document.get("error", {}).get("message", f"ended with status {status}")
            self.observations.errors.append(f"dlcloud {arguments[0]}: {error}")
        result: Mapping[str, Any] | None = document.get("result")
        return result


def _run_command(
    arguments: Sequence[str], termination: Termination | None, environment: Mapping[str, str]
) -> tuple[str, int]:
    """Run a command of dlcloud; return what it printed, and its status.

    Ctrl-C reaches this process alone, which passes it on once: the command then ends what it has launched.

    Args:
        arguments: Of the command.
        termination: What an interrupted command terminates; None if it has launched nothing.
        environment: Variables of the command besides this process's.
    """
    process: subprocess.Popen[str] | None = None
    try:
        with holding():
            process = start_command(arguments, environment)
        text, _ = process.communicate()
    except TerminationAbandonedError:  # the command finishes without this process
        raise
    except KeyboardInterrupt:
        if process is not None:
            with terminations.running(termination) if termination else nullcontext():
                process.send_signal(signal.SIGINT)
                process.communicate()
        raise
    return text, process.returncode


def start_command(
    arguments: Sequence[str], environment: Mapping[str, str] = MappingProxyType({})
) -> subprocess.Popen[str]:
    """Start a command of dlcloud in its own session; a Ctrl-C before it is ready waits until it is."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        return subprocess.Popen(
            [sys.executable, "-c", _PROGRAM, *arguments],
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env={name: value for name, value in (os.environ | environment).items() if value},
        )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _termination_of(names: Collection[str], most_usd: Decimal) -> Termination:
    command = f"dlcloud down {' '.join(names)}"
    own = (
        f"they terminate themselves, {MAX_HOURS * 60:.0f} minutes after launch, {money(most_usd)} USD at most"
    )
    texts = TerminationTexts(
        doing="terminating the instances of the self-test",
        otherwise=f"to leave them until {own}",
        left=f"instances of the self-test may still be up until {own}; {command} terminates them",
    )
    return Termination(subject="the self-test", command=command, emit=_emit, describe=lambda: texts)


def _emit(event: Event) -> None:
    with suppress(OSError, ValueError):  # the terminal may have been closed
        say(event.message, err=True)


def _read_document(text: str) -> dict[str, Any]:
    """Return what a command printed; nothing of one that was cut off."""
    try:
        return dict(json.loads(text))
    except ValueError:
        return {}
