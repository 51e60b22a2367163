"""What a program printed last is shown beside its progress, while it runs."""

import re
import threading

from dlcloud.model.errors import UnreachableError
from dlcloud.model.events import Progress
from dlcloud.runs.run import LONGEST_LINE, LiveOutput


def live():
    events = []
    return LiveOutput(emit=events.append, instance_id="i-0001"), events


def progress(message, done=1):
    return Progress(message=message, instance_id="i-0001", done=done, total=4, remaining_s=60)


def test_a_line_is_not_shown_beside_the_next_part():
    display, events = live()
    display.show(progress("preparing one"))
    display.feed(b"loss 0.5\n")
    display.show(progress("preparing one", done=2))
    display.show(progress("preparing two"))
    assert [event.message for event in events[-2:]] == ["preparing one: loss 0.5", "preparing two"]


def test_nothing_is_shown_after_the_end_and_long_lines_are_cut():
    display, events = live()
    display.feed(b"x" * 1000)
    display.close()
    display.feed(b"late\n")
    assert [len(event.message) for event in events] == [LONGEST_LINE]


def test_the_first_output_and_the_first_throughput_are_noted_once():
    came = []
    display = LiveOutput(emit=repr, instance_id="i", on_first=came.append, throughput=re.compile(r"(\d+)/s"))
    display.feed(b"dlcloud: resumes\n")
    display.feed(b"loading\n")
    display.feed(b"5/s\n6/s\n")
    assert came == ["output", "throughput"]


def test_a_broken_connection_ends_only_the_display():
    display, events = live()
    is_read = threading.Event()

    def stream():
        yield b"first\n"
        is_read.set()
        raise UnreachableError("the connection broke")

    display.follow(stream)
    assert is_read.wait(60)
    display.feed(b"second\n")
    assert [event.message for event in events] == ["first", "second"]
