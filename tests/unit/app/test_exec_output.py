"""What `exec` on several instances keeps of their output is bounded, whatever they print."""

import tracemalloc
from contextlib import ExitStack

import pytest

from dlcloud.app.clusters.exec import Kept, _print_output


@pytest.fixture
def opened():
    with ExitStack() as stack:
        yield stack


def test_all_of_a_short_output_is_kept(opened):
    kept = Kept(opened, limit=1000, in_memory=10)
    for number in range(50):
        kept.write(f"{number}\n".encode())
    assert b"".join(kept.pieces()).split() == [str(number).encode() for number in range(50)]
    assert b"".join(kept.pieces(5)) == b"[135 bytes before this are left out]\n8\n49\n"


def test_of_a_long_output_the_end_is_kept_and_what_is_left_out_is_counted(opened):
    kept = Kept(opened, limit=1000, in_memory=10)
    written = b"".join(f"{number:07}\n".encode() for number in range(5000))
    for begin in range(0, len(written), 700):
        kept.write(written[begin : begin + 700])
    first, _, rest = b"".join(kept.pieces()).partition(b"\n")
    assert first == f"[{len(written) - len(rest)} bytes before this are left out]".encode()
    assert written.endswith(rest)
    assert 500 <= len(rest) <= 1000


def test_a_long_line_takes_no_more_memory_than_a_short_one(opened, capfdbinary):
    out, err = (Kept(opened, limit=64 << 20, in_memory=1 << 16) for _ in range(2))
    for _ in range(160):  # ten times the limit of a stream in memory
        out.write(b"x" * (1 << 16))
    err.write(b"one\ntwo\rthree\nfour")
    tracemalloc.start()
    _print_output("i-1", (out, err))
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()
    printed = capfdbinary.readouterr()
    assert printed.out == b"i-1: " + b"x" * (160 << 16) + b"\n"
    assert printed.err == b"i-1: one\ni-1: two\rthree\ni-1: four\n"
