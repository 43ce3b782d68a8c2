"""This machine's way to its package indexes, for images that are built on it.

A package index may be configured in a file of this machine, and some of it may lie in folders
of its own. An image that is built here needs the same, and no Dockerfile that ships may know
of it: so it goes into the stand-in for the base image. Folders are served on 127.0.0.1, which
a build with the host's network reaches.
"""

from __future__ import annotations

import ast
import subprocess
import sys
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlsplit

# Fixed, because it is written into the base image, on which every cached layer stands.
PORT = 47631
CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
PLACES = ("index-url", "extra-index-url", "find-links")


class PackageFolders:
    """Serves the folders that pip was told to look into, and only those."""

    def __init__(self) -> None:
        self.settings = _pip_settings()
        self.folders: dict[str, Path] = {}
        for key in PLACES:
            places = [self._served(place) for place in self.settings.get(key, "").split()]
            self.settings[key] = " ".join(places)
        self._server: ThreadingHTTPServer | None = None

    def write(self, folder: Path) -> None:
        """Write `pip.conf`, `constraints.txt` and the certificates for a Dockerfile to copy."""
        lines = [f"{key} = {self.settings[key]}" for key in PLACES if self.settings.get(key)]
        # Files of a plain HTTP address are taken without a question only from a trusted host.
        lines += ["cert = /etc/ssl/certs/ca-certificates.crt", "trusted-host = 127.0.0.1"]
        constraint = self.settings.get("constraint")
        if constraint:
            lines.append("constraint = /etc/constraints.txt")
        (folder / "pip.conf").write_text("[global]\n" + "\n".join(lines) + "\n")
        found = Path(constraint).read_text("utf-8") if constraint else ""
        (folder / "constraints.txt").write_text(found)
        (folder / "ca-certificates.crt").write_bytes(CERTIFICATES.read_bytes())

    def start(self) -> None:
        if self.folders:
            handler = partial(_Handler, self.folders)
            self._server = ThreadingHTTPServer(("127.0.0.1", PORT), handler)
            threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def stop(self) -> None:
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()

    def _served(self, place: str) -> str:
        if place.startswith(("http:", "https:")):
            return place
        path = Path(unquote(urlsplit(place).path))
        # An index's pages link to files beside its folder.
        root = path if path == Path(self.settings.get("find-links", "")) else path.parent
        name = str(len(self.folders))
        self.folders[name] = root
        inside = "" if root == path else quote(f"{path.name}/")
        return f"http://127.0.0.1:{PORT}/{name}/{inside}"


class _Handler(SimpleHTTPRequestHandler):
    def __init__(self, folders: dict[str, Path], *arguments: Any) -> None:
        self.folders = folders
        super().__init__(*arguments)

    def translate_path(self, path: str) -> str:
        name, _, rest = urlsplit(path).path.lstrip("/").partition("/")
        if name not in self.folders:
            return "/nonexistent"
        self.directory = str(self.folders[name])
        return super().translate_path(f"/{rest}")

    def log_message(self, *arguments: Any) -> None:
        """Nothing: thousands of lines that nobody reads."""


def _pip_settings() -> dict[str, str]:
    """`pip config list`; what the environment says comes last and wins, as in pip."""
    listed = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=True
    ).stdout
    settings: dict[str, str] = {}
    for prefix in ("global.", "install.", ":env:."):
        for line in listed.splitlines():
            key, _, value = line.partition("=")
            if key.startswith(prefix):
                settings[key.removeprefix(prefix)] = str(ast.literal_eval(value))
    return settings
