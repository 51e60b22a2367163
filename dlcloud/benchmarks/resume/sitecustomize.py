"""Start the hook if the recipe says `resume: auto`, then the sitecustomize that this one hides."""

import os
import sys


def _start_hook() -> None:
    if os.environ.get("DLCLOUD_RESUME") != "auto" or not os.environ.get("DLCLOUD_CHECKPOINTS"):
        return
    try:
        from dlcloud_resume import hook  # noqa: PLC0415 - nothing is imported where the hook is off

        hook.start()
    except Exception as error:  # noqa: BLE001 - the program runs without the hook
        sys.stderr.write(f"dlcloud: the resume hook did not start, the program runs without it: {error}\n")


def _run_hidden() -> None:
    """Run the next sitecustomize on the path, such as a distribution's."""
    here = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120 - pathlib takes 5 ms to import
    for entry in sys.path:
        path = os.path.join(entry, "sitecustomize.py")  # noqa: PTH118
        if os.path.abspath(entry) == here or not os.path.isfile(path):  # noqa: PTH100, PTH113
            continue
        import importlib.util  # noqa: PLC0415 - few have one

        spec = importlib.util.spec_from_file_location("sitecustomize", path)
        if spec is not None and spec.loader is not None:
            module = sys.modules["sitecustomize"] = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
        return


_start_hook()
_run_hidden()
