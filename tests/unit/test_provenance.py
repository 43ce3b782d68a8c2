"""What goes with every figure."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from hiqcache import provenance as module
from hiqcache.provenance import provenance


def test_commit_is_of_this_checkout_or_unknown(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def git(*arguments: str) -> str:
        command = ["git", "-C", str(tmp_path), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    file = tmp_path / "hiqcache" / "provenance.py"
    file.parent.mkdir(parents=True)
    file.write_text("")
    monkeypatch.setattr(module, "__file__", str(file))
    assert module.commit() == "unknown"
    git("init", "--quiet")
    git("add", ".")
    git("-c", "user.name=n", "-c", "user.email=e@example.org", "commit", "--quiet", "-m", "one")
    assert module.commit() == git("rev-parse", "HEAD")
    file.write_text("changed")
    assert module.commit() == git("rev-parse", "HEAD") + "+dirty"
    # Installed inside somebody else's repository.
    deeper = tmp_path / "site-packages" / "hiqcache" / "provenance.py"
    deeper.parent.mkdir(parents=True)
    monkeypatch.setattr(module, "__file__", str(deeper))
    assert module.commit() == "unknown"


def test_provenance_names_versions_machine_and_device() -> None:
    origin = provenance("cpu", "some processor")
    assert origin["device_name"] == "some processor"
    assert origin["torch"][0].isdigit()
    assert all(isinstance(value, str) and value for value in origin.values())
