"""The commands about clusters: `status`, `logs`, `exec`, `ssh`, `resize`, `cancel`, `down` and `gc`.

Three further commands are called by programs, not by people, and no help lists them: `tunnel` is the
ProxyCommand of `ssh`; `control` and `take-over` run on the instances of a detached cluster. The use cases are
in `dlcloud/app/clusters`.
"""

import click

from dlcloud.cli.complete import complete_clusters, complete_runs
from dlcloud.cli.options import (
    CLOUDS,
    Hours,
    cidr_option,
    output_option,
    plain_output_option,
    verbose_option,
)
from dlcloud.model.errors import RecipeError

commands = click.Group()


class RemoteCommand(click.Command):
    """A command that runs the words after `--` on instances; the cluster before them may be left out."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if "--" in args:
            dashes = args.index("--")
            if not isinstance(self.make_parser(ctx).parse_args(args[:dashes])[0].get("cluster"), str):
                args = [*args[:dashes], "", *args[dashes:]]
        return super().parse_args(ctx, args)


@commands.command("status")
@click.argument("cluster", default="", shell_complete=complete_clusters)
@click.option("--all", "all_clusters", is_flag=True, help="Include clusters that are down.")
@click.option(
    "--everywhere", is_flag=True, help="Include detached clusters of other machines, in every region."
)
@click.option("--all-owners", is_flag=True, help="Include clusters of other people (with --everywhere).")
@click.option("-w", "--watch", is_flag=True, help="Print it every 5 s, until Ctrl-C or nothing is up.")
@output_option
@verbose_option
def status(
    *,
    cluster: str,
    all_clusters: bool,
    everywhere: bool,
    all_owners: bool,
    watch: bool,
    output: str,
    verbose: bool,
) -> int | None:
    """Show the instances of CLUSTER (default: of all) as the cloud reports them now, with their cost so far.

    For clusters at work it shows the step, the time left, and stalls. A detached cluster of any machine
    is found by its name.
    """
    from dlcloud.app.clusters.status import run
    from dlcloud.app.context import Context

    with Context("status", verbose=verbose) as context:
        return run(
            context,
            cluster=cluster,
            all_clusters=all_clusters,
            everywhere=everywhere,
            all_owners=all_owners,
            watch=watch,
            output=output,
        )


@commands.command("logs")
@click.argument("run", default="", shell_complete=complete_runs)
@click.option("-f", "--follow", is_flag=True, help="Continue until the run has ended.")
@click.option(
    "-n",
    "--tail",
    type=click.IntRange(0),
    default=None,
    metavar="N",
    help="Print only the last lines; with -f, these first.",
)
@click.option(
    "--since",
    type=Hours(),
    default=None,
    help="Print only what was printed in this time, such as 90m or 2h; with -f, this first.",
)
@plain_output_option("Output format.")
@verbose_option
def logs(
    *, run: str, follow: bool, tail: int | None, since: float | None, output: str, verbose: bool
) -> int | None:
    """Print the log of RUN (a run, a cluster or an instance; default: the newest run).

    For a job over several nodes it is that of rank 0; each other node has its own run.
    """
    from dlcloud.app.clusters.logs import run as print_logs
    from dlcloud.app.context import Context

    if tail is not None and since is not None:
        raise click.UsageError("--tail and --since exclude each other")
    since_s = None if since is None else round(since * 3600)
    with Context("logs", verbose=verbose) as context:
        return print_logs(context, run=run, follow=follow, tail=tail, since_s=since_s, output=output)


@commands.command("exec", cls=RemoteCommand, context_settings={"ignore_unknown_options": True})
@click.argument("cluster", default="", shell_complete=complete_clusters)
@click.argument("words", nargs=-1, required=True, type=click.UNPROCESSED, metavar="-- COMMAND...")
@click.option(
    "-i",
    "--instance",
    default="",
    metavar="INSTANCE",
    help="Only this instance: its id, or its number from 1.",
)
@output_option
@verbose_option
def execute(*, cluster: str, words: tuple[str, ...], instance: str, output: str, verbose: bool) -> int | None:
    """Run COMMAND on every instance of CLUSTER (default: the only one) in parallel.

    The output is printed instance by instance. That of several is kept up to 1 GiB in all, and in documents
    up to 16 MiB: the end of it.

    Exits with the status of COMMAND on a single instance; on several with 4 if it failed everywhere, 5 if it
    failed somewhere.
    """
    from dlcloud.app.clusters.exec import run
    from dlcloud.app.context import Context

    with Context("exec", verbose=verbose) as context:
        return run(context, cluster=cluster, words=words, instance=instance, output=output)


@commands.command("ssh", cls=RemoteCommand, context_settings={"ignore_unknown_options": True})
@click.argument("cluster", default="", shell_complete=complete_clusters)
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="[-- COMMAND...]")
@click.option(
    "-i", "--instance", default="", metavar="INSTANCE", help="Which instance: its id, or its number from 1."
)
@click.option(
    "-L", "forwards", multiple=True, metavar="PORT:HOST:PORT", help="Forward a local port, as ssh -L."
)
@click.option("--config", is_flag=True, help="Write entries for scp, VS Code and others; open no shell.")
@click.option("--include", is_flag=True, help="Include the entries of --config in ~/.ssh/config.")
@plain_output_option("json: print the command only.")
@verbose_option
def ssh(
    *,
    cluster: str,
    words: tuple[str, ...],
    forwards: tuple[str, ...],
    instance: str,
    config: bool,
    include: bool,
    output: str,
    verbose: bool,
) -> int | None:
    """Open a shell on an instance of CLUSTER (the only one, if none is named), or run COMMAND there.

    Its host key is proven. --config writes an ssh_config file, by which `scp`, `rsync` and VS Code reach
    each instance by the cluster's name (NAME-2, NAME-3 for others). Write it again after a resize.

    \b
    dlcloud ssh x -- nvidia-smi
    dlcloud ssh x -L 8888:localhost:8888
    dlcloud ssh --config --include
    """  # noqa: D301  click wants a real backspace, to leave these lines as they are
    from dlcloud.app.clusters.ssh import run
    from dlcloud.app.context import Context

    with Context("ssh", verbose=verbose) as context:
        return run(
            context,
            cluster=cluster,
            words=words,
            forwards=forwards,
            instance=instance,
            config=config,
            include=include,
            output=output,
        )


@commands.command("resize")
@click.argument("cluster", shell_complete=complete_clusters)
@click.argument("size", type=click.IntRange(min=1, max=1000))
@click.option("--dry-run", is_flag=True, help="Show what would be launched and terminated; do neither.")
@click.option("-y", "--yes", is_flag=True, help="Spend money without asking.")
@click.option(
    "--keep-free",
    type=click.IntRange(0, 1000),
    default=None,
    metavar="N",
    help="Number of reserved instances that a training with instances.reservations leaves idle for others.",
)
@cidr_option
@output_option
@verbose_option
def resize(
    *,
    cluster: str,
    size: int,
    dry_run: bool,
    yes: bool,
    keep_free: int | None,
    cidrs: tuple[str, ...],
    output: str,
    verbose: bool,
) -> int | None:
    """Grow or shrink CLUSTER to SIZE instances.

    New ones come from the pools of the cluster's recipe, as with `up`. On-demand instances beyond the
    recipe's base are terminated first, then spot, then the base; the newest first, never the oldest on-demand
    one. A resize that was interrupted is finished by the next one, or by `up`.

    While a command with checkpoints runs, its programs are asked to stop before their instances change.
    """
    from dlcloud.app.clusters.resize import run
    from dlcloud.app.context import Context

    with Context("resize", verbose=verbose) as context:
        return run(
            context,
            cluster=cluster,
            size=size,
            dry_run=dry_run,
            yes=yes,
            cidrs=cidrs,
            keep_free=keep_free,
            output=output,
        )


@commands.command("cancel")
@click.argument("run", default="", shell_complete=complete_runs)
@output_option
@verbose_option
def cancel(*, run: str, output: str, verbose: bool) -> None:
    """Stop RUN (a run, a cluster or an instance; default: the only one that is running); keep its cluster.

    The `up` in charge downloads what the run wrote and exits; its cluster stays up: `up --name CLUSTER` uses
    it again, `down CLUSTER` terminates it.
    """
    from dlcloud.app.clusters.cancel import run as stop_run
    from dlcloud.app.context import Context

    with Context("cancel", verbose=verbose) as context:
        stop_run(context, name=run, output=output)


@commands.command("down")
@click.argument("clusters", nargs=-1, shell_complete=complete_clusters)
@click.option("--all", "all_clusters", is_flag=True, help="Every cluster that is up.")
@click.option(
    "--discard",
    is_flag=True,
    help="Give up what does not answer (a detached cluster, with its results) or what EC2 does not list.",
)
@click.option("--all-owners", is_flag=True, help="Allow names of detached clusters of other people.")
@click.option(
    "-y",
    "--yes",
    is_flag=True,
    help="Do not ask: terminate detached trainings, and end a process in charge of several clusters.",
)
@output_option
@verbose_option
def down(
    *,
    clusters: tuple[str, ...],
    all_clusters: bool,
    discard: bool,
    all_owners: bool,
    yes: bool,
    output: str,
    verbose: bool,
) -> None:
    """Terminate CLUSTERS (the only one, if none is named) with their security groups and keys.

    Results of detached clusters are downloaded first. If a detached training still runs, it asks first,
    on a terminal.

    A process that is in charge of the cluster (`up`, `bench`) is asked to terminate it, and killed after
    a minute.
    """
    from dlcloud.app.clusters.down import run
    from dlcloud.app.context import Context
    from dlcloud.app.terminal.screen import printing

    with Context("down", verbose=verbose) as context:
        run(
            context,
            clusters=clusters,
            all_clusters=all_clusters,
            discard=discard,
            all_owners=all_owners,
            yes=yes,
            show=printing(output),
        )


@commands.command("gc")
@click.argument("clusters", nargs=-1)
@click.option(
    "--region",
    "regions",
    multiple=True,
    metavar="REGION",
    help="Only this region; default: every region of the account.",
)
@click.option(
    "--cloud",
    type=click.Choice(CLOUDS),
    default=None,
    help="Where to look; default: AWS, and the local EC2 if it runs.",
)
@click.option("--all-owners", is_flag=True, help="Include what other people, and other homes, launched.")
@click.option("--cache", is_flag=True, help="List and remove cached files of the local EC2.")
@click.option("--dry-run", is_flag=True, help="Show; remove nothing.")
@click.option("-y", "--yes", is_flag=True, help="Remove without asking.")
@output_option
@verbose_option
def gc(
    *,
    clusters: tuple[str, ...],
    regions: tuple[str, ...],
    cloud: str | None,
    all_owners: bool,
    cache: bool,
    dry_run: bool,
    yes: bool,
    output: str,
    verbose: bool,
) -> None:
    """Find tagged resources that no known cluster owns, show what they cost, and delete them.

    It removes what this home launched. What another home launched with the same credentials is listed,
    and removed by its id (CLUSTERS), detached clusters included. What other people launched is removed
    with --all-owners only. Images of `dlcloud image` are removed once they are superseded, or not
    launched for 30 days. Unfinished clusters of this home are listed with their price and the command
    that terminates them.

    With --cache it removes environments, models, packages and container images of the local EC2 that no
    cluster uses.
    """
    from dlcloud.app.context import Context

    if cache and (clusters or regions or cloud or all_owners):
        raise RecipeError("--cache is of this machine alone", "dlcloud gc --cache")
    with Context("gc", verbose=verbose) as context:
        if cache:
            from dlcloud.app.account.caches import run as run_caches

            run_caches(context, dry_run=dry_run, yes=yes, output=output)
            return
        from dlcloud.app.account.gc import run

        run(
            context,
            clusters=clusters,
            regions=regions,
            cloud=cloud,
            all_owners=all_owners,
            dry_run=dry_run,
            yes=yes,
            output=output,
        )


@commands.command("tunnel", hidden=True)
@click.argument("cluster")
@click.argument("instance")
@verbose_option
def tunnel(*, cluster: str, instance: str, verbose: bool) -> None:
    """Connect to the SSH server of INSTANCE of CLUSTER the way that its network allows: a ProxyCommand.

    \b
    ssh -o ProxyCommand='dlcloud tunnel CLUSTER INSTANCE' ubuntu@INSTANCE
    """  # noqa: D301  click wants a real backspace, to leave these lines as they are
    from dlcloud.app.clusters.ssh import tunnel as carry
    from dlcloud.app.context import Context

    with Context("tunnel", verbose=verbose) as context:
        carry(context, cluster=cluster, instance=instance)


@commands.command("control", hidden=True)
@click.argument("recipe")
@click.option("--name", required=True, metavar="NAME", help="The name of its cluster.")
@cidr_option
def control(*, recipe: str, name: str, cidrs: tuple[str, ...]) -> None:
    """Do the work of the cluster that this instance belongs to, and terminate all other instances."""
    from dlcloud.app.clusters.control import run
    from dlcloud.app.context import Context

    with Context("control") as context:
        run(context, recipe=recipe, name=name, cidrs=cidrs)


@commands.command("take-over", hidden=True)
@click.argument("cluster_id")
@click.option("--watch", is_flag=True, help="Wait until no instance controls the cluster.")
def take_over(*, cluster_id: str, watch: bool) -> None:
    """Take the control of this instance's own cluster, unless another instance has it."""
    from dlcloud.app.clusters.take_over import run
    from dlcloud.app.context import Context

    with Context("take-over") as context:
        run(context, cluster_id=cluster_id, watch=watch)
