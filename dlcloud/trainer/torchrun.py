"""Run a script that does not call `train` under torchrun, with the settings that make torchrun survive.

Every change of membership restarts all workers, each from its checkpoint: seconds, where `train` takes a
fraction of one. The script has to save checkpoints itself, at intervals and on SIGTERM, and to load the
newest when it starts; `examples/torchrun_digits.py` shows how, with `checkpoint.py`.

`store` as the first argument serves the store at which torchrun's agents meet: its own process, which no
worker's end ends.
"""

import argparse
import logging
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from .drain import DRAINED
from .instance.options import positive
from .instance.processes import end_with_parent, watch_termination


def main(argv: Sequence[str] | None = None) -> int:
    """Run torchrun; a signal to leave, or a failed worker, gives an exit status instead of a traceback."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments[:1] == ["store"]:
        return serve_store(arguments[1:])
    from torch.distributed import run  # noqa: PLC0415
    from torch.distributed.elastic.multiprocessing.api import SignalException  # noqa: PLC0415
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError  # noqa: PLC0415

    end_with_parent()
    try:
        run.main(arguments)
    except SignalException:
        return DRAINED
    except ChildFailedError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


def serve_store(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python3 -m trainer.torchrun store")
    parser.add_argument("--host", required=True, help="address to listen on")
    parser.add_argument("--port", type=positive, required=True)
    arguments = parser.parse_args(argv)
    terminated = watch_termination()
    # After the arguments: a wrong one should not wait for PyTorch.
    from torch.distributed import TCPStore  # noqa: PLC0415

    store = TCPStore(arguments.host, arguments.port, is_master=True, wait_for_workers=False)
    terminated.wait()
    del store
    return 0


def end(status: int) -> NoReturn:
    """End the process without finalizing Python.

    A torchrun that leaves keeps its rendezvous' thread; while Python ends, that thread's next call of the
    store aborts the process (pytorch/pytorch#38228), and a worker that has left looks like one that failed.
    """
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    end(main())
