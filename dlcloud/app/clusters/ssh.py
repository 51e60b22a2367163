"""`dlcloud ssh`: a shell or a command on an instance, forwarded ports, and entries for ~/.ssh/config."""

from dlcloud.app.clusters.ssh_session import SshSession, open_session, write_config
from dlcloud.app.context import Context
from dlcloud.model.errors import RecipeError


def run(
    context: Context, *, cluster: str, session: SshSession, config: bool, include: bool, output: str
) -> int | None:
    """Open a shell on an instance of CLUSTER (the only one, if none is named), or run COMMAND there."""
    if include and not config:
        raise RecipeError("--include belongs to --config", "dlcloud ssh --config --include")
    if config:
        write_config(context, cluster, include=include, output=output)
        return None
    forwarded = output == "json"
    status = context.forward_command(cluster) if forwarded else session.open_detached(context, cluster)
    if status is None:
        open_session(context, cluster, session, print_only=output == "json")
    return status
