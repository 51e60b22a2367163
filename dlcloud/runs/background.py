"""Work in a thread of its own, one piece after the other."""

import threading
from collections.abc import Callable


class Background:
    """Does one piece of work at a time; its error is raised where the next one is handed to it."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def begin(self, work: Callable[[], None]) -> None:
        """Begin a piece of work once the one before has ended; raises the error of that one."""
        self.wait()

        def run() -> None:
            try:
                work()
            except BaseException as error:  # noqa: BLE001 raised again by wait(), in the caller's thread
                self._error = error

        # A daemon: after a Ctrl-C the interpreter does not wait for an instance that hangs.
        self._thread = threading.Thread(target=run, name="dlcloud-results", daemon=True)
        self._thread.start()

    def wait(self) -> None:
        """Wait until it has ended; raises its error."""
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.join()
        error, self._error = self._error, None
        if error is not None:
            raise error
