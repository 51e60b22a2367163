"""One command on all instances together: the head is measured, the workers take part in what it starts.

The head is rank 0, the cluster's first instance. `dlcloud/benchmarks/nodes` runs on the instances.
"""

import secrets
import shlex
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from dlcloud.analysis.result import Run, RunState, parse_record
from dlcloud.launch.remote_jobs import RECORDS, RemoteJobs, folder_of, whole_lines
from dlcloud.launch.setup import JOB
from dlcloud.model.cluster import Member
from dlcloud.model.errors import (
    DlcloudError,
    InstanceError,
    LostInstanceError,
    PartialError,
    RemoteCommandError,
)
from dlcloud.model.events import Warned
from dlcloud.model.untrusted import number_or_none
from dlcloud.recipe.kept_results import NOTHING
from dlcloud.runs.checkpoints import NOTICE, RESIZE, SAVE_S, STOP_S
from dlcloud.runs.resizing import POLL_S
from dlcloud.runs.run import Runner
from dlcloud.system.parallel import all_or_raise, fan_out

PORT = 29530
"""The port of the head for the workers; the cluster's security group admits only its own instances."""

KEY = "nodes.key"
"""The file in a run's folder with the secret that its nodes share."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """An instance with its run."""

    member: Member
    run: Run

    @property
    def address(self) -> str:
        """The address for the other instances."""
        return self.member.instance.private_host or self.member.instance.host


T = TypeVar("T", Member, Node)
R = TypeVar("R")


def run_workload(runner: Runner, members: Sequence[Member]) -> list[Run]:
    """Run a recipe's workload on every instance by itself, or as one job over all of them.

    Raises:
        InstanceError: Every run failed, or the job did.
        PartialError: Some runs failed; the results of the others are stored.
    """
    with nullcontext() if runner.checkpoints is None else runner.checkpoints.in_use(members):
        if not runner.recipe.is_one_job:
            return runner.run_all(members)
        return [NodesRunner(runner).run(members)]


class NodesRunner:
    """Runs the command of a recipe as one job over all instances of a cluster."""

    def __init__(self, runner: Runner) -> None:
        self.runner = runner
        self._jobs = RemoteJobs(managed=runner.managed)
        self._size: int | None = None  # the job stops for a resize to it

    def run(self, members: Sequence[Member]) -> Run:
        """Run the job; one that an earlier `up` left behind is followed, not repeated.

        If an instance is reclaimed or lost, all ranks start again on those that are left and a replacement;
        after `dlcloud resize`, on the new number of instances.

        Returns:
            The run of rank 0.

        Raises:
            RemoteCommandError: It failed on a node, which the message names.
            InstanceError: An instance is gone and not replaced, or could not be set up.
        """
        retries, nodes = self.runner.recipe.workload.retries, self._find_unfinished(members)
        self.runner.follow_resizes(members)
        while True:
            try:
                return self._run_once(nodes or self._send(members))
            except DlcloudError as error:
                if (resized := self._resize()) is not None:
                    members, nodes = resized, []
                    continue
                lost = [member for member in members if self._is_lost(member)]
                replacements = self.runner.replacements
                if lost and replacements is not None:
                    new = {member.instance.instance_id: self.runner.replace(member, error) for member in lost}
                    members = [new.get(member.instance.instance_id, member) for member in members]
                elif not lost and self.runner.steps_back(members[0], error):
                    pass
                elif retries and not lost and isinstance(error, RemoteCommandError):
                    retries -= 1
                    self.runner.emit_retry(error, retries)
                else:
                    raise
                nodes = []

    def _is_lost(self, member: Member) -> bool:
        """True if an instance is gone, or has a notice; one that does not answer is dialled for a while."""
        checkpoints = self.runner.checkpoints
        if checkpoints is not None and member.instance.instance_id in checkpoints.noticed:
            return True
        try:
            self._jobs.reconnect(member)
        except LostInstanceError:
            return True
        return False

    def _resize(self) -> Sequence[Member] | None:
        """Return the instances after a resize for which the job has stopped; None if there was none."""
        size, self._size, resizing = self._size, None, self.runner.resizing
        if size is None or resizing is None:
            return None
        resizing.end(resizing.choose_leaving(size))
        return resizing.members

    def _run_once(self, nodes: Sequence[Node]) -> Run:
        ended = threading.Event()
        try:
            self._start(nodes)
            self._watch_notices(nodes)
            name = f"resizes of {nodes[0].run.run_id}"
            threading.Thread(target=self._watch_size, args=(nodes[0], ended), name=name, daemon=True).start()
            (run,) = self._on_all([nodes[0]], lambda node: self.runner.follow(node.member, node.run))
        except KeyboardInterrupt:
            self.runner.stop_programs()
            self._stop(nodes, RunState.FAILED)
            raise
        except DlcloudError:
            self._stop(nodes[1:])
            raise
        finally:
            ended.set()
        self._stop(nodes[1:])
        return run

    def _watch_size(self, head: Node, ended: threading.Event) -> None:
        """Launch what a resize asks for while the job runs, then let rank 0 stop the job."""
        resizing, checkpoints = self.runner.resizing, self.runner.checkpoints
        while resizing is not None and checkpoints is not None and not ended.wait(POLL_S):
            size = resizing.requested()
            if size is None or (size > len(resizing.members) and not resizing.grow(size)):
                continue
            self._size = min(size, len(resizing.members))
            message = f"{RESIZE}: the job stops, and starts again on {self._size} instance(s)"
            self.runner.managed.emit(Warned(message=message))
            checkpoints.ask_to_stop(head.member, head.run, STOP_S, RESIZE)
            return

    def _watch_notices(self, nodes: Sequence[Node]) -> None:
        """Let a notice of any node stop the job on all of them: rank 0 stops it."""
        for node in nodes[1:] if self.runner.checkpoints is not None else ():
            name = f"notices of rank {node.run.rank}"
            threading.Thread(target=self._watch, args=(node, nodes[0]), name=name, daemon=True).start()

    def _watch(self, node: Node, head: Node) -> None:
        command = f"{JOB} follow {folder_of(node.run)} {RECORDS} 0"
        with suppress(DlcloudError):  # an instance that is gone ends the job, too
            for _, lines in whole_lines(self._jobs.connect(node.member).stream(command), 0):
                for line in lines.decode("utf-8", "replace").splitlines():
                    record = parse_record(line)
                    if record is not None and record["record"] == NOTICE:
                        self._pass_on(node, head, record)
                        return

    def _pass_on(self, node: Node, head: Node, record: Mapping[str, Any]) -> None:
        """Request the replacement of a node that has a notice, and ask rank 0 to stop the job."""
        checkpoints, reason = self.runner.checkpoints, str(record.get("reason"))[:80]
        assert checkpoints is not None  # noqa: S101 - otherwise nothing is watched
        self.runner.request_replacement(node.member, reason)
        seconds = max(0.0, (number_or_none(record.get("seconds")) or 0.0) - SAVE_S)
        checkpoints.ask_to_stop(head.member, head.run, seconds, f"{reason} of rank {node.run.rank}")

    def _find_unfinished(self, members: Sequence[Member]) -> list[Node]:
        """Return the nodes of a job that continues, by rank; one that lacks a node is ended instead."""
        workload = self.runner.workload
        runs = [(member, self._jobs.find_unfinished(member, workload)) for member in members]
        nodes = [Node(member=member, run=run) for member, run in runs if run is not None]
        nodes.sort(key=lambda node: node.run.rank)
        is_whole = bool(nodes) and len(nodes) == nodes[0].run.nodes
        if is_whole and nodes[0].run.rank == 0:
            return nodes
        self._stop(nodes, RunState.FAILED)
        return []

    def _send(self, members: Sequence[Member]) -> list[Node]:
        """Set all instances up, send each what it runs, and store the runs that are about to start."""
        runner, setup_at = self.runner, self.runner.managed.clock.now()
        runner.expect(len(members))
        if len(members) > 1:
            runner.allow_peers()
        pythons = self._on_all(members, lambda member: runner.prepare(self._jobs.connect(member), member))
        nodes: list[Node] = []
        for rank, member in enumerate(members):
            run = self._jobs.new_run(member, runner.workload, image_id=runner.image_id, setup_at=setup_at)
            head_run_id = nodes[0].run.run_id if nodes else ""
            run = replace(run, nodes=len(members), rank=rank, head_run_id=head_run_id)
            nodes.append(Node(member=member, run=run))
        secret = secrets.token_hex(32).encode()

        def send(node: Node) -> None:
            connection, folder = self._jobs.connect(node.member), folder_of(node.run)
            runner.send_files(connection, folder, node.member)
            runner.place_checkpoints(connection, node.run)
            connection.send_bytes(secret, f"{folder}/{KEY}", mode=0o600)
            command = self._command(node, nodes, pythons[node.run.rank])
            connection.send_bytes(command.encode(), f"{folder}/command")

        self._on_all(nodes, send)
        for node in nodes:
            runner.managed.store.runs.add(node.run)
        return nodes

    def _command(self, node: Node, nodes: Sequence[Node], python: str) -> str:
        """Return the shell command of a node, for the folder in which the user's command runs."""
        head = nodes[0].address
        files = ["--secret-file", KEY, "--folder", "work"]
        if node.run.rank:
            words = [python, "-m", "benchmarks.nodes.node", "--head", f"{head}:{PORT}", *files]
            words += ["--rank", str(node.run.rank), "--address", node.address]
            return f"mkdir -p ../work && cd .. && exec {shlex.join(words)}\n"
        workload = self.runner.recipe.workload
        names = sorted({name for setting in workload.settings for name in setting.environment})
        words = [python, "-m", "benchmarks.nodes.head", "--address", head, "--port", str(PORT), *files]
        words += ["--nodes", str(len(nodes)), *(word for name in names for word in ("--forward", name))]
        program = self.runner.program
        line = f"exec {shlex.join(words)} -- {shlex.quote(program.user_command)}"
        program = program.on_nodes(line, len(nodes))
        return program.command(python, host=node.run.instance_id)

    def _start(self, nodes: Sequence[Node]) -> None:
        """Start the workers, then the head: what was started before continues."""

        def start(node: Node) -> None:
            self.runner.start(self._jobs.connect(node.member), node.run)

        self._on_all(nodes[1:], start)
        start(nodes[0])

    def _on_all(self, items: Sequence[T], work: Callable[[T], R]) -> list[R]:
        """Work on all nodes in parallel; the failure of one is that of the job."""
        outcomes = fan_out(work, items, width=None)
        try:
            return all_or_raise(outcomes, name=_instance_id)
        except PartialError as error:
            raise InstanceError(error.message, error.hint) from error

    def _stop(self, nodes: Sequence[Node], state: RunState = RunState.DONE) -> None:
        """End what still runs on nodes, copy the logs here, and store the ends of their runs."""
        recipe = self.runner.recipe

        def stop(node: Node) -> None:
            is_kept = recipe.keep.all_nodes or (node.run.rank == 0 and state is RunState.FAILED)
            kept = recipe.kept_files if is_kept else NOTHING
            try:
                self._jobs.stop(self._jobs.connect(node.member), node.run)
                self._jobs.fetch_results(node.member, replace(node.run, state=state), kept)
            except DlcloudError as error:
                self.runner.managed.emit(
                    Warned(message=f"rank {node.run.rank}: {error.message}", instance_id=node.run.instance_id)
                )
                now = self.runner.managed.clock.now()
                self.runner.managed.store.runs.end(node.run.run_id, RunState.LOST, None, now)

        fan_out(stop, nodes, width=None)


def _instance_id(item: Member | Node) -> str:
    member = item if isinstance(item, Member) else item.member
    return member.instance.instance_id
