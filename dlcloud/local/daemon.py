"""The daemon's process: `python -m dlcloud.local.daemon FOLDER`, started by `LocalSite` only."""

import gc
import json
import logging
import os
import sys
import tempfile
from collections.abc import Callable
from logging.handlers import RotatingFileHandler
from pathlib import Path

from dlcloud.local.instance.machine_images import IMAGES
from dlcloud.local.site_files import SitePaths
from dlcloud.model.errors import DlcloudError
from dlcloud.system.files import FileLock, allow_many_files

_LOG_BYTES = 2_000_000
_OLD_LOGS = 1
_BUFFERED_OBJECT = 64 * 1024

log = logging.getLogger("dlcloud.local.daemon")


def main(arguments: list[str]) -> int:
    """Run the local EC2 of a folder until a signal or a control call ends it. Returns the exit status."""
    paths = SitePaths(folder=Path(arguments[0]))
    umask = os.umask(0o077)
    _log_to(paths.log)
    lock = FileLock(paths.life_lock)  # held as long as this process lives
    if not lock.acquire(wait=False):
        log.error("another daemon, %s, runs in %s", lock.holder(), paths.folder)
        return 1
    _prepare_moto(paths)
    try:
        os.umask(umask)  # of compiled modules, which other users may share
        # Only now: moto reads its settings from the environment while it is imported.
        run = _import_service()
        os.umask(0o077)
    except ImportError as error:
        log.error("%s", error)  # noqa: TRY400 - the message names what is missing; the traceback adds nothing
        return 1
    try:
        run(paths)
    except DlcloudError as error:
        log.error("%s; hint: %s", error.message, error.hint)  # noqa: TRY400 - the message says it all
        return 1
    except Exception:
        log.exception("the local cloud failed")
        return 1
    finally:
        paths.state.unlink(missing_ok=True)
        lock.release()
    return 0


def _import_service() -> Callable[[SitePaths], None]:
    """Import the service: moto makes several sessions of boto3, and objects that are never garbage."""
    from dlcloud.cloud.api.descriptions import share_descriptions  # noqa: PLC0415
    from dlcloud.local.moto_data import load_less  # noqa: PLC0415

    gc.disable()
    share_descriptions()
    load_less()
    from dlcloud.local.service import run  # noqa: PLC0415

    gc.freeze()
    gc.enable()
    return run


def _log_to(path: Path) -> None:
    handler = RotatingFileHandler(path, maxBytes=_LOG_BYTES, backupCount=_OLD_LOGS, encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    logging.getLogger("dlcloud").setLevel(logging.INFO)


def _prepare_moto(paths: SitePaths) -> None:
    """Give moto our images and let it refuse unknown types, images and key pairs."""
    images = paths.folder / "images.json"
    images.write_text(json.dumps([image.as_moto() for image in IMAGES]), encoding="utf-8")
    # Objects of S3 that are larger are open files without a name: they go with the daemon.
    objects = paths.folder / "objects"
    objects.mkdir(exist_ok=True)
    tempfile.tempdir = str(objects)
    allow_many_files()
    os.environ.update(
        MOTO_S3_DEFAULT_KEY_BUFFER_SIZE=str(_BUFFERED_OBJECT),
        MOTO_AMIS_PATH=str(images),
        MOTO_EC2_ENABLE_INSTANCE_TYPE_VALIDATION="true",
        MOTO_ENABLE_AMI_VALIDATION="true",
        MOTO_ENABLE_KEYPAIR_VALIDATION="true",
        MOTO_DISABLE_GLOBAL_CORS="true",
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
