"""`dlcloud tunnel`: bytes between standard input and output and an instance's SSH server."""

import os
import signal
import socket
import sys
import threading
from typing import TYPE_CHECKING

import click

from dlcloud.cli.options import verbose_option
from dlcloud.model.cluster import select_members

if TYPE_CHECKING:
    from dlcloud.ssh.route import Stream

PIECE = 1 << 16
TIMEOUT_S = 30.0


@click.command("tunnel")
@click.argument("cluster")
@click.argument("instance")
@verbose_option
def command(*, cluster: str, instance: str, verbose: bool) -> None:
    """Connect to the SSH server of INSTANCE of CLUSTER the way that its network allows: a ProxyCommand.

    \b
    ssh -o ProxyCommand='dlcloud tunnel CLUSTER INSTANCE' ubuntu@INSTANCE
    """  # noqa: D301  click wants a real backspace, to leave these lines as they are
    from dlcloud.cli.context import Context

    with Context("tunnel", verbose=verbose) as context:
        # Of ssh, which ends its ProxyCommand so: nothing is interrupted.
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
        detached = context.detached.find(cluster)
        if detached is not None:
            stream = context.route_of_detached(detached)(detached.endpoint, TIMEOUT_S)
        else:
            own_cluster = context.find_cluster(cluster)
            member = select_members(own_cluster, context.clusters.members(own_cluster.cluster_id), instance)[
                0
            ]
            stream = context.route(own_cluster)(member.instance.endpoint(own_cluster.user), TIMEOUT_S)
        stream.settimeout(None)
        _carry(stream)


def _carry(stream: "Stream") -> None:
    """Carry bytes both ways until the instance ends the connection."""

    def send() -> None:
        while piece := os.read(sys.stdin.fileno(), PIECE):
            stream.sendall(piece)
        if isinstance(stream, socket.socket):
            stream.shutdown(socket.SHUT_WR)

    threading.Thread(target=send, daemon=True).start()
    while piece := stream.recv(PIECE):
        sys.stdout.buffer.write(piece)
        sys.stdout.buffer.flush()
