"""Runs the sidecar: takes the port first, so that a taken one is a sentence and not a traceback."""

from __future__ import annotations

import logging
import socket
import sys
from collections.abc import Sequence

import uvicorn

from hiqcache.errors import HiQCacheError
from hiqcache.sidecar.address import Address
from hiqcache.sidecar.app import create_app

STOP_SECONDS = 2
BACKLOG = 128


def serve(addresses: Sequence[Address], host: str, port: int, timeout: float) -> None:
    """Serve until SIGINT or SIGTERM.

    Raises
    ------
    HiQCacheError
        The port cannot be had.
    """
    logging.basicConfig(
        stream=sys.stderr, level=logging.WARNING, format="%(asctime)s %(levelname)s %(message)s"
    )
    logging.getLogger("hiqcache").setLevel(logging.INFO)
    app = create_app(addresses, timeout)
    with listen(host, port) as listener:
        taken = listener.getsockname()[1]
        shown = f"[{host}]" if ":" in host else host
        named = ", ".join(address.name or address.url for address in addresses)
        print(f"HiQCache sidecar of {named}: http://{shown}:{taken}/", flush=True)
        config = uvicorn.Config(
            app,
            access_log=False,
            log_config=None,
            timeout_graceful_shutdown=STOP_SECONDS,
            server_header=False,
        )
        uvicorn.Server(config).run(sockets=[listener])


def listen(host: str, port: int) -> socket.socket:
    """A listening socket; port 0 takes any free one.

    Raises
    ------
    HiQCacheError
        The port is taken or not allowed, or the host is not one of this machine's.
    """
    try:
        if not host:
            # The socket library takes it for all interfaces, which nobody means by nothing.
            raise UnicodeError
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=BACKLOG)
    except (OSError, UnicodeError) as error:
        why = getattr(error, "strerror", None) or "not a host name"
        raise HiQCacheError(
            f"cannot listen on {host} port {port}: {why}; choose with --host and --port"
        ) from None
