"""`dlcloud tunnel`: bytes between standard input and output and an instance's SSH server."""

import os
import signal
import socket
import sys
import threading

from dlcloud.app.context import Context
from dlcloud.model.cluster import select_members
from dlcloud.ssh.route import Stream

PIECE = 1 << 16
TIMEOUT_S = 30.0


def run(context: Context, *, cluster: str, instance: str) -> None:
    """Connect to the SSH server of INSTANCE of CLUSTER the way that its network allows: a ProxyCommand."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    detached = None if context.controls(cluster) else context.detached.find(cluster)
    if detached is not None:
        stream = context.machines.route_of_detached(detached)(detached.endpoint, TIMEOUT_S)
    else:
        own_cluster = context.find_cluster(cluster)
        member = select_members(own_cluster, context.clusters.members(own_cluster.cluster_id), instance)[0]
        stream = context.machines.route(own_cluster)(member.instance.endpoint(own_cluster.user), TIMEOUT_S)
    stream.settimeout(None)
    _carry(stream)


def _carry(stream: Stream) -> None:
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
