"""Run one dlcloud command; write the stack of every API call and the imported modules to WALK_FILE.

A stack is a list of (file, function) within dlcloud; of a call in a thread it begins where the thread was
started. Three things have their stacks there beside API calls: "notice", where a thread hands on the record
of a spot interruption notice; "start", where a program is started on an instance; and the first calls of the
functions that WALK_PROBES names (module:function, separated by spaces), by these names.
"""

import functools
import importlib
import json
import os
import queue
import sys
import threading
from pathlib import Path

from botocore.client import BaseClient
from paramiko import Channel

import dlcloud
from dlcloud.cli.main import main

PACKAGE = f"{Path(dlcloud.__file__).parent}{os.sep}"
MOST = 500
"""Calls of a probe that are kept."""

calls, starts = [], {}
make_api_call, start_thread, put = BaseClient._make_api_call, threading.Thread.start, queue.Queue.put
execute = Channel.exec_command


def stack():
    frame, frames = sys._getframe(2), []
    while frame is not None:
        frames.append((frame.f_code.co_filename, frame.f_code.co_name))
        frame = frame.f_back
    return starts.get(threading.current_thread(), []) + frames[::-1]


def record(call, frames):
    calls.append((call, [(path.removeprefix(PACKAGE), name) for path, name in frames if PACKAGE in path]))


def record_call(client, operation, arguments):
    record(f"{operation} as a dry run" if arguments.get("DryRun") else operation, stack())
    return make_api_call(client, operation, arguments)


def record_put(inbox, item, *arguments, **named):
    if type(item).__module__.startswith("dlcloud.elastic") and "'notice'" in repr(item):
        record("notice", stack())
    return put(inbox, item, *arguments, **named)


def record_command(channel, command):
    if "job.py start" in str(command):
        record("start", stack())
    return execute(channel, command)


def record_start(thread):
    starts[thread] = stack()
    start_thread(thread)


def probe(name):
    module_name, _, function_name = name.partition(":")
    owner = importlib.import_module(module_name)
    *classes, function_name = function_name.split(".")
    for part in classes:
        owner = getattr(owner, part)
    function = getattr(owner, function_name)

    @functools.wraps(function)
    def wrapper(*arguments, **named):
        if sum(call == name for call, _ in calls) < MOST:
            record(name, [*stack(), (function.__code__.co_filename, function_name)])
        return function(*arguments, **named)

    setattr(owner, function_name, wrapper)


def write():
    Path(os.environ["WALK_FILE"]).write_text(json.dumps({"calls": calls, "modules": [*sys.modules]}))


def write_and_exit(status):
    write()
    exit_at_once(status)


exit_at_once, os._exit = os._exit, write_and_exit  # some commands end by it
BaseClient._make_api_call = record_call
threading.Thread.start = record_start
queue.Queue.put, Channel.exec_command = record_put, record_command
for probed in os.environ.get("WALK_PROBES", "").split():
    probe(probed)
try:
    main()
finally:
    write()
