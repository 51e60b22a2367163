"""`dlcloud logs`: the output of a run's program, from the instance while it runs, from this machine after."""

import sys
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from dlcloud.analysis.result import Run, RunState
from dlcloud.app.context import Context
from dlcloud.app.terminal.screen import say, writer_to
from dlcloud.launch.remote_jobs import LOG_TIMES, log_command
from dlcloud.model.cluster import Cluster, ClusterState, Member
from dlcloud.model.errors import RecipeError, UnreachableError
from dlcloud.report.table import envelope

_PIECE = 1 << 16
POLL_S = 1.0
_END_POLLS = 10
BUILDERS = ("image-", "selftest-")
"""How the names of clusters begin that run no program of a recipe."""


def run(
    context: Context,
    *,
    run: str = "",
    follow: bool = False,
    tail: int | None = None,
    since_s: int | None = None,
    output: str,
) -> int | None:
    """Print a run's log.

    Args:
        context: The collaborators.
        run: A run, a cluster or an instance; by default the newest run.
        follow: Continue until the run has ended.
        tail: Only the last lines; with `follow`, these first.
        since_s: Only what was printed in the last seconds; with `follow`, this first.
        output: `text` or `json`.

    Raises:
        RecipeError: There is no such run, or its log was lost.
        UnreachableError: The instance does not answer.
    """
    status = context.forward_command(run)
    if status is not None:
        return status
    shown_run = _await(context, run) if follow else _find(context, run)
    _name_other_nodes(context, shown_run)
    pieces = _pieces(context, run, shown_run, follow=follow, tail=tail, since_s=since_s)
    if output == "json":
        text = b"".join(pieces).decode("utf-8", "replace")
        say(
            envelope(
                "logs", {"result": {"run": shown_run.run_id, "state": str(shown_run.state), "log": text}}
            )
        )
        return None
    write = writer_to(sys.stdout.buffer, shows_overwritten=True)
    for piece in pieces:
        write(piece)
    return None


def _await(context: Context, name: str) -> Run:
    """Return the run to follow; wait for it while its cluster is launched and set up."""
    with context.console.waiting("nothing runs yet; waiting for it ..."):
        while True:
            try:
                return _find(context, name)
            except RecipeError:
                if not _is_awaited(context, name):
                    raise
            context.clock.sleep(POLL_S)


def _is_awaited(context: Context, name: str) -> bool:
    """True if the only cluster that can be meant is being launched or set up, and has run nothing."""
    busy = (ClusterState.STARTING, ClusterState.RUNNING)
    meant = [c for c in context.clusters.active() if not name or name in {c.name, c.cluster_id}]
    if len(meant) != 1 or meant[0].state not in busy:
        return False
    return not any(run.cluster_id == meant[0].cluster_id for run in context.runs.own())


def _find(context: Context, name: str) -> Run:
    runs = context.runs.own()
    if not name:
        _refuse_older_log(context, runs)
    if not runs:
        is_up = any(cluster.name == name for cluster in context.clusters.active())
        raise RecipeError(
            "nothing has run yet", f"dlcloud status {name}" if is_up else "dlcloud up quickstart"
        )
    named = [run for run in runs if not name or name in {run.run_id, run.cluster_name, run.instance_id}]
    if not named:
        named = _of_cluster(context, runs, name)
    newest = _with_log(context, named) if name not in {named[-1].run_id, named[-1].instance_id} else named[-1]
    if newest.rank and name in {"", newest.cluster_name}:
        return next((run for run in named if run.run_id == newest.head_run_id), newest)
    return newest


def _with_log(context: Context, runs: Sequence[Run]) -> Run:
    """Return the newest run of the newest cluster that has a log: a worker may be lost while others train."""
    with_log = [
        run
        for run in runs
        if run.cluster_id == runs[-1].cluster_id
        and (run.state is RunState.RUNNING or context.paths.run_log(run.run_id).exists())
    ]
    return with_log[-1] if with_log else runs[-1]


def _of_cluster(context: Context, runs: Sequence[Run], name: str) -> list[Run]:
    """Return the runs of the newest cluster whose name begins so, as `dlcloud training` takes it.

    Raises:
        RecipeError: There is none, or it has run nothing.
    """
    clusters = {cluster.cluster_id: cluster for cluster in context.clusters.all() if cluster.name == name}
    clusters = clusters or {c.cluster_id: c for c in context.clusters.all() if c.name.startswith(name)}
    named = [run for run in runs if run.cluster_id in clusters]
    names = sorted({cluster.name for cluster in clusters.values()})
    if len(names) == 1 and not named:
        raise RecipeError(f"{names[0]} has run no program", f"dlcloud status {names[0]}")
    if named:
        return [run for run in named if run.cluster_id == named[-1].cluster_id]
    hint = f"dlcloud logs {runs[-1].run_id} prints the newest"
    raise RecipeError(f"no run {name}", f"{' or '.join(names)}?" if names else hint)


def _name_other_nodes(context: Context, run: Run) -> None:
    """Name the runs of the other nodes of a job, by rank."""
    others = [other for other in context.runs.own() if other.head_run_id == run.run_id]
    if others:
        names = ", ".join(other.run_id for other in sorted(others, key=lambda other: other.rank))
        say(f"rank 0 of {run.nodes}; the other nodes: dlcloud logs {names}", err=True)


def _refuse_older_log(context: Context, runs: Sequence[Run]) -> None:
    """Refuse to print the log of a run that is older than a cluster whose program never started."""
    clusters = [cluster for cluster in context.clusters.all() if not cluster.name.startswith(BUILDERS)]
    newest = max(clusters, key=lambda cluster: cluster.created_at, default=None)
    if newest is None or any(run.cluster_id == newest.cluster_id for run in runs):
        return
    if runs and runs[-1].started_at > newest.created_at:
        return
    is_down = newest.state is ClusterState.DOWN
    reason = "its launch or its set-up failed" if is_down else "it is being launched or set up"
    hint = (
        f"dlcloud logs {runs[-1].run_id} prints the run before it"
        if runs
        else f"dlcloud status {newest.name}"
    )
    raise RecipeError(f"{newest.name} has run no program: {reason}", hint)


def _pieces(
    context: Context, name: str, run: Run, *, follow: bool, tail: int | None, since_s: int | None
) -> Iterator[bytes]:
    """Yield the log as it was copied back, or from the instance while the run continues.

    An instance may end meanwhile, as one that `resize` releases: the rest comes from the copy then, or, if
    nothing was printed yet, all from the run that NAME stands for now.
    """
    printed = 0
    while True:
        stored = context.paths.run_log(run.run_id)
        if stored.exists():
            begin = printed
            if not printed and since_s is not None:
                begin = _begin_since(stored.with_name(LOG_TIMES), context.clock.now().timestamp() - since_s)
            elif not printed and tail is not None:
                begin = _begin_of_last(stored, tail)
            yield from _read_pieces(stored, begin)
            return
        if run.state is not RunState.RUNNING:
            raise RecipeError(
                f"the log of {run.run_id} was not copied back ({run.state})", "dlcloud cost-report"
            )
        try:
            for piece in _pieces_of_instance(context, run, follow=follow, tail=tail, since_s=since_s):
                printed += len(piece)
                yield piece
        except UnreachableError:
            ended = _await_end(context, run)
            if ended is None:
                raise
            run = ended if printed else _find(context, name)
        else:
            return


def _pieces_of_instance(
    context: Context, run: Run, *, follow: bool, tail: int | None, since_s: int | None
) -> Iterator[bytes]:
    cluster, member = _instance_of(context, run)
    context.accounts.verify(cluster, recent=True)
    connection = context.machines.admitting_dialer(cluster).dial(member.instance.endpoint(cluster.user))
    return connection.stream(log_command(run, follow=follow, tail=tail, since_s=since_s))


def _await_end(context: Context, run: Run) -> Run | None:
    """Return a run when the launcher has recorded its end; None if that does not come soon."""
    with context.console.waiting("the instance does not answer; waiting for the end of its run ..."):
        for _ in range(_END_POLLS):
            newest = next((other for other in context.runs.own() if other.run_id == run.run_id), run)
            if newest.state is not RunState.RUNNING:
                return newest
            context.clock.sleep(POLL_S)
    return None


def _read_pieces(path: Path, begin: int) -> Iterator[bytes]:
    with path.open("rb") as log:
        log.seek(begin)
        while piece := log.read(_PIECE):
            yield piece


def _begin_of_last(path: Path, lines: int) -> int:
    """Return where the last lines of a file begin."""
    begins: deque[int] = deque(maxlen=lines)
    place = 0
    with path.open("rb") as log:
        for line in log:
            begins.append(place)
            place += len(line)
    return begins[0] if begins else place


def _begin_since(times: Path, moment: float) -> int:
    """Return how long a log was at a moment; 0 if that is not known."""
    begin = 0
    with suppress(OSError, ValueError):
        for line in times.read_text("utf-8").splitlines():
            at, size = line.split()
            if float(at) > moment:
                break
            begin = int(size)
    return begin


def _instance_of(context: Context, run: Run) -> tuple[Cluster, Member]:
    cluster = context.clusters.find(run.cluster_id)
    members = context.clusters.members(run.cluster_id)
    member = next((member for member in members if member.instance.instance_id == run.instance_id), None)
    if cluster is None or member is None:
        raise RecipeError(f"the instance of {run.run_id} is unknown in this home", "dlcloud status --all")
    return cluster, member
