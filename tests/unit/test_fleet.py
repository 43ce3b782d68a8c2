"""Servers of several arms, with real processes that answer `/health` in SGLang's place."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from hiqcache.errors import HiQCacheError
from hiqcache.lab.fleet import Arm, Fleet, Launch, Pools
from hiqcache.lab.serving.server import Server, ServerFailed

HEALTH = """
import http.server, sys
class Health(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Health).serve_forever()
"""
REFUSED = "print('HiQCache stops the server: no such codec'); raise SystemExit(7)"


class Lightweight(Launch):
    """Starts a web server for each arm, and a program that ends for one named `refused`."""

    def server(self, arm: Arm, gpu: str | None) -> Server:
        server = super().server(arm, gpu)
        assert isinstance(server, Server)
        code = REFUSED if arm.name == "refused" else HEALTH
        server.command = [sys.executable, "-S", "-c", code, str(server.port)]
        return server


def arm(name: str, codec: str | None = "int8") -> Arm:
    return Arm(name=name, codec=codec, pools=Pools(l1_tokens=100, l2=("--hicache-size", "1")))


def fleet(tmp_path: Path, *names: str, side_by_side: bool = False) -> Fleet:
    launch = Lightweight(model="m", arguments=("--all",), logs=tmp_path)
    return Fleet(launch, [arm(name) for name in names], side_by_side=side_by_side)


def test_in_turn_one_server_makes_way_for_the_next(tmp_path: Path) -> None:
    with fleet(tmp_path, "a", "b") as servers:
        first = servers.client(arm("a"))
        assert first.healthy()
        assert servers.client(arm("a")) is first, "the same server, not another"
        second = servers.client(arm("b"))
        assert second.healthy() and not first.healthy()
    assert not second.healthy()


def test_side_by_side_a_failure_is_missed_only_where_it_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hiqcache.lab.fleet.STAGGER_SECONDS", 0)
    with fleet(tmp_path, "a", "refused", "b", side_by_side=True) as servers:
        clients = [servers.client(arm(name)) for name in ("a", "b")]
        assert all(client.healthy() for client in clients)
        with pytest.raises(ServerFailed, match="code 7: HiQCache stops the server: no such codec"):
            servers.client(arm("refused"))
        assert all(client.healthy() for client in clients), "and nobody else is touched"
    assert not any(client.healthy() for client in clients)


def test_a_server_that_ended_meanwhile_is_named(tmp_path: Path) -> None:
    with fleet(tmp_path, "a") as servers:
        servers.client(arm("a"))
        server = servers._servers["a"]
        assert isinstance(server, Server) and server._process is not None
        server._process.kill()
        server._process.wait()
        with pytest.raises(HiQCacheError, match="the server of a has ended with code -9"):
            servers.client(arm("a"))


def test_a_server_that_did_not_come_up_is_started_anew_when_it_is_asked_for_again(
    tmp_path: Path,
) -> None:
    with fleet(tmp_path, "refused") as servers:
        for _ in range(2):
            with pytest.raises(ServerFailed, match="no such codec"):
                servers.client(arm("refused"))


def test_an_arms_own_arguments_come_last_and_pools_are_flags(tmp_path: Path) -> None:
    pools = Pools(l1_tokens=100, l2=("--hicache-size", "1"), page=16, policy="write_back")
    launch = Launch(model="m", arguments=("--page-size", "1"), logs=tmp_path)
    words = launch.arguments_of(
        Arm(name="x", codec="int8", pools=pools, arguments=("--page-size", "64"))
    )
    assert [words[i + 1] for i, word in enumerate(words) if word == "--page-size"] == [
        *("16", "1", "64")
    ]
    assert "--hicache-mem-layout" not in words, "SGLang's default"
    assert "--enable-hierarchical-cache" in words
    assert Pools(l1_tokens=100).arguments() == ("--max-total-tokens", "100")


def test_a_gpu_is_filled_before_the_next(tmp_path: Path) -> None:
    launch = Launch(model="m", arguments=(), logs=tmp_path, gpus=("2", "5"), per_gpu=2)
    assert [launch.gpu(place) for place in range(5)] == ["2", "2", "5", "5", "5"]
