"""`dlcloud selftest`: the cheapest round trip on an account, and what it proves."""

import json
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
from typing import Any

from dlcloud.analysis.selftest import (
    MAX_HOURS,
    MAX_USD,
    PROBE,
    SWITCH_S,
    Observations,
    SelftestVerdict,
    judge,
    read_probe,
    recipe_text,
)
from dlcloud.app.terminal.screen import confirm, say
from dlcloud.app.terminal.signals import (
    Termination,
    TerminationAbandonedError,
    TerminationTexts,
    holding,
    raise_on,
    terminations,
)
from dlcloud.model.errors import BudgetError, CloudError
from dlcloud.model.events import Event
from dlcloud.model.money import money
from dlcloud.model.untrusted import printable
from dlcloud.report.account import describe_place, selftest_report
from dlcloud.report.table import Format, render

_MARKETS = ("on-demand", "spot")
_GRACE_S = 120
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


def run(*, cloud: str, region: str, instance_type: str, part: str, yes: bool, output: str) -> int:
    """Prove that dlcloud works on an account: launch, run, grow and terminate the cheapest instances.

    With the part `switch`, one is launched, its launcher killed, and its own end awaited.
    """
    raise_on(signal.SIGTERM, signal.SIGHUP)
    with tempfile.TemporaryDirectory(prefix="dlcloud-selftest-") as folder:
        trip = RoundTrip(cloud=cloud, region=region, instance_type=instance_type, folder=Path(folder))
        place = describe_place(cloud, region)
        say(f"self-test of {place}: asking for types, quotas and prices ...", err=True)
        try:
            most = trip.most_usd() if part == "round-trip" else trip.most_usd_of_one()
        except CommandFailedError:
            raise CloudError(
                f"the self-test of {place} was not started: {trip.observations.errors[0]}",
                f"dlcloud doctor --cloud {cloud}",
            ) from None
        _confirm(most, limit=MAX_USD, is_rehearsal=cloud == "local", yes=yes)
        if part == "round-trip":
            trip.run(most)
        else:
            trip.kill_launcher(most)
    findings = judge(trip.observations)
    if part != "round-trip":
        findings = [finding for finding in findings if finding.verdict is not SelftestVerdict.NOT_SEEN]
    report = selftest_report(findings, errors=trip.observations.errors, place=place)
    say(render(report, Format(output)))
    return 5 if any(finding.verdict is SelftestVerdict.FAILED for finding in findings) else 0


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
        cloud: `aws` or `local`.
        region: Where the instances are launched.
        instance_type: Of every instance.
        folder: For the recipes.
    """

    cloud: str
    region: str
    instance_type: str
    folder: Path
    observations: Observations = field(init=False)
    _termination: Termination | None = field(init=False, default=None)

    def __post_init__(self) -> None:

        self.observations = Observations()

    def most_usd(self) -> Decimal:
        """Return the most that the instances of both markets may cost; the on-demand one becomes two."""
        total = Decimal(0)
        for market, count in zip(_MARKETS, (2, 1), strict=True):
            plan = self._ask("up", self._recipe(market), "--dry-run")["plan"]
            total += Decimal(plan["worst_case_usd"]) * count
        return total

    def most_usd_of_one(self) -> Decimal:
        """Return the most that one on-demand instance may cost."""
        return Decimal(self._ask("up", self._recipe("on-demand"), "--dry-run")["plan"]["worst_case_usd"])

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

    def _recipe(self, market: str) -> str:

        path = self.folder / f"{market}.yaml"
        path.write_text(
            recipe_text(cloud=self.cloud, region=self.region, instance_type=self.instance_type, market=market)
        )
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
        text, status = _run_command([*arguments, "--output", "json"], self._termination)
        document = _read_document(text)
        if status:
            error = document.get("error", {}).get("message", f"ended with status {status}")
            self.observations.errors.append(f"dlcloud {arguments[0]}: {error}")
        result: Mapping[str, Any] | None = document.get("result")
        return result


def _run_command(arguments: Sequence[str], termination: Termination | None) -> tuple[str, int]:
    """Run a command of dlcloud; return what it printed, and its status.

    Ctrl-C reaches this process alone, which passes it on once: the command then ends what it has launched.

    Args:
        arguments: Of the command.
        termination: What an interrupted command terminates; None if it has launched nothing.
    """
    process: subprocess.Popen[str] | None = None
    try:
        with holding():
            process = start_command(arguments)
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


def start_command(arguments: Sequence[str]) -> subprocess.Popen[str]:
    """Start a command of dlcloud in its own session; a Ctrl-C before it is ready waits until it is."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        return subprocess.Popen(
            [sys.executable, "-c", _PROGRAM, *arguments],
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
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


def _read_document(text: str) -> Mapping[str, Any]:
    """Return what a command printed; nothing of one that was cut off."""
    try:
        return dict(json.loads(text))
    except ValueError:
        return {}
