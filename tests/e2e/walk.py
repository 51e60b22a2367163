"""Run one dlcloud command; write the stack of every API call and the imported modules to WALK_FILE.

A stack is a list of (file, function) within dlcloud; of a call in a thread it begins where the thread was
started.
"""

import json
import os
import sys
import threading
import traceback
from pathlib import Path

from botocore.client import BaseClient

import dlcloud
from dlcloud.cli.main import main

PACKAGE = f"{Path(dlcloud.__file__).parent}{os.sep}"
calls, starts = [], {}
make_api_call, start_thread = BaseClient._make_api_call, threading.Thread.start


def stack():
    frames = [(frame.filename, frame.name) for frame in traceback.extract_stack()[:-2]]
    return starts.get(threading.current_thread(), []) + frames


def record_call(client, operation, arguments):
    name = f"{operation} as a dry run" if arguments.get("DryRun") else operation
    frames = [(path.removeprefix(PACKAGE), name) for path, name in stack() if path.startswith(PACKAGE)]
    calls.append((name, frames))
    return make_api_call(client, operation, arguments)


def record_start(thread):
    starts[thread] = stack()
    start_thread(thread)


BaseClient._make_api_call = record_call
threading.Thread.start = record_start
try:
    main()
finally:
    Path(os.environ["WALK_FILE"]).write_text(json.dumps({"calls": calls, "modules": [*sys.modules]}))
