"""A torchrun that is asked to leave while its threads are in calls of the store."""

import itertools
import runpy
import signal
import sys
import threading

from torch.distributed import TCPStore, run
from torch.distributed.elastic.multiprocessing.api import SignalException

CALLS = 100
server = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
clients = [TCPStore("127.0.0.1", server.port, is_master=False) for _ in range(2)]
under_way = threading.Barrier(len(clients) + 1)


def keep_calling(client):
    for number in itertools.count():
        client.set("key", str(number))
        if number == CALLS:
            under_way.wait()


def leave(_arguments):
    for client in clients:
        threading.Thread(target=keep_calling, args=[client], daemon=True).start()
    under_way.wait()
    raise SignalException("asked to leave", signal.SIGTERM)


run.main = leave
sys.argv[1:] = []
runpy.run_module("trainer.torchrun", run_name="__main__")
