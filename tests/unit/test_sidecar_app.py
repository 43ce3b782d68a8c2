"""The sidecar's addresses, its schema, its page's policy, and what it never tells."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from hiqcache.cli import main
from hiqcache.sidecar.address import Address
from hiqcache.sidecar.page import load_page
from tests.unit.sidecar_cases import TEXTS, Behaviour, answer, fake_engine, scrape, sidecar

pytestmark = pytest.mark.filterwarnings("error")

URL = "http://127.0.0.1:30000"


def test_every_address_answers() -> None:
    with fake_engine(answer(TEXTS["traffic"])) as engine:
        addresses = [Address("bf16", engine.url), Address("int8", engine.url)]
        with sidecar(addresses, own=True) as client:
            metrics = client.get("/metrics")
            openmetrics = client.get(
                "/metrics", headers={"accept": "application/openmetrics-text; version=1.0.0"}
            )
            summary = client.get("/api/v1/summary")
            alive, ready, page = (client.get(path) for path in ("/healthz", "/readyz", "/"))
    assert metrics.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert "process_resident_memory_bytes" in metrics.text
    assert openmetrics.headers["content-type"].startswith("application/openmetrics-text")
    assert openmetrics.text.endswith("# EOF\n")
    assert summary.headers["content-type"] == "application/json"
    assert summary.headers["cache-control"] == "no-store"
    assert alive.json() == {"status": "ok"}
    assert ready.json() == {"ready": True, "engines": {"bf16": True, "int8": True}}
    assert page.headers["content-type"] == "text/html; charset=utf-8"


PATHS = ("/", "/metrics", "/api/v1/summary", "/healthz", "/readyz", "/openapi.json")


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("behave", [answer(TEXTS["traffic"]), answer("", 503)], ids=["up", "down"])
def test_head_is_a_get_without_a_body(path: str, behave: Behaviour) -> None:
    with fake_engine(behave) as engine, sidecar([Address(None, engine.url)]) as client:
        got, head = client.get(path), client.head(path)
        # The same connection goes on: nothing was left behind on it.
        assert client.get("/healthz").json() == {"status": "ok"}
    assert (head.status_code, head.content) == (got.status_code, b"")
    for name in ("content-type", "cache-control", "content-security-policy"):
        assert head.headers.get(name) == got.headers.get(name)
    assert int(head.headers["content-length"]) > 0


def test_the_summary_has_the_figures_of_the_metrics() -> None:
    with fake_engine(answer(TEXTS["traffic"])) as engine, sidecar([Address(None, engine.url)]) as c:
        (shown,) = c.get("/api/v1/summary").json()["engines"]
        found = scrape(c)
    figures = shown["figures"]
    assert (shown["name"], shown["up"], shown["problems"]) == ("engine", True, [])
    assert figures["pool"]["codec"] == "int8"
    sizes = figures["bytes_per_token"]
    assert sizes == {"configured": 15360, "backup": 15360, "restore": 15360, "unencoded": None}
    assert figures["l2"]["tokens"] == found["hiqcache_l2_tokens", ()]
    assert figures["restore"]["tokens"] == found["hiqcache_restore_tokens_total", ()] == 9046
    assert figures["hit_rate"] == found["hiqcache_hit_rate", ()]
    assert figures["ttft"]["requests"] == 17


def test_the_schema_describes_every_field_and_its_unit() -> None:
    with sidecar([Address(None, URL)]) as client:
        schema = client.get("/openapi.json").json()
    models = schema["components"]["schemas"]
    assert {
        "Summary",
        "EngineModel",
        "FiguresModel",
        "L2Model",
        "BackupModel",
        "RestoreModel",
    } <= set(models)
    for name, model in models.items():
        for field, described in model.get("properties", {}).items():
            if name in ("Alive", "HTTPValidationError", "ValidationError"):
                continue
            assert described.get("description"), f"{name}.{field}"
            if '"number"' in str(described).replace("'", '"'):
                assert "'unit'" in str(described), f"{name}.{field}"


SECRET = "hunter2"


def test_nothing_but_known_numbers_is_passed_on() -> None:
    text = re.sub(r'"[^"]*smollm2[^"]*"', f'"/home/{SECRET}/model"', TEXTS["traffic"])
    for label in ("codec", "transfer", "layout", "page_size", "reason", "cache_source", "pool"):
        text += f'hiqcache_engine_pool_info{{{label}="{SECRET}"}} 1\n'
        text += f'sglang:cached_tokens_total{{{label}="{SECRET}"}} 1\n'
        text += f'sglang:hicache_dropped_tokens_total{{{label}="{SECRET}"}} 1\n'
    text += f'sglang:info{{api_key="{SECRET}"}} 1\n# HELP sglang:prompt_tokens_total {SECRET}\n'
    text += f'{SECRET} 1\nsglang:num_running_reqs{{a="{SECRET}"}} 1\n'
    behave = answer(text, x_key=SECRET, set_cookie=SECRET)
    with fake_engine(behave) as engine, sidecar([Address("int8", engine.url)], own=True) as client:
        paths = ("/metrics", "/api/v1/summary", "/", "/readyz", "/healthz", "/openapi.json")
        answers = [client.get(path) for path in paths]
        engine.behave = answer(f"error: {SECRET}", 500)
        answers += [client.get(path) for path in paths]
    assert "hiqcache_up" in answers[0].text and 'hiqcache_up{engine="int8"} 1' in answers[0].text
    for response in answers:
        assert SECRET not in response.text
        assert SECRET not in str(response.headers)


def test_the_page_loads_nothing_from_elsewhere() -> None:
    page = load_page()
    policy = page.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert policy.count("'sha256-") == 2
    assert not re.search(r"(src|href)=\"(?!data:|metrics|api/)", page.html)
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", page.html)
    assert not re.search(r"\s(style|on\w+)=", page.html), "a strict policy forbids both"
    assert "innerHTML" not in page.html


def test_neither_torch_nor_sglang_is_imported() -> None:
    code = (
        "import sys, hiqcache.commands.sidecar, hiqcache.sidecar.serve; "
        "print([m for m in ('torch', 'sglang', 'triton', 'numpy') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_a_bare_install_says_what_is_missing() -> None:
    code = (
        "import sys; sys.modules['uvicorn'] = None\n"
        "from hiqcache.cli import main\n"
        f"sys.exit(main(['sidecar', '--engine', '{URL}']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr == ("hiqcache: uvicorn is not installed: pip install 'hiqcache[sidecar]'\n")


BAD = {
    "no engine": (),
    "an engine without a scheme": ("--engine", "127.0.0.1"),
    "two engines without names": ("--engine", URL, "--engine", URL),
    "two engines of one name": ("--engine", f"a={URL}", "--engine", f"a={URL}"),
    "a password": ("--engine", "http://a:b@127.0.0.1"),
    "port a word": ("--engine", URL, "--port", "http"),
    "port out of range": ("--engine", URL, "--port", "65536"),
    "port negative": ("--engine", URL, "--port=-1"),
    "timeout zero": ("--engine", URL, "--timeout", "0"),
    "timeout NaN": ("--engine", URL, "--timeout", "nan"),
    "timeout infinite": ("--engine", URL, "--timeout", "inf"),
    "timeout too long": ("--engine", URL, "--timeout", "61"),
    "timeout a word": ("--engine", URL, "--timeout", "3s"),
    "a stray word": ("--engine", URL, "more"),
}


@pytest.mark.parametrize("arguments", BAD.values(), ids=BAD.keys())
def test_bad_input_is_one_line_and_exit_code_2(
    arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["sidecar", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("hiqcache: ") and err.count("\n") == 1


@pytest.mark.parametrize("host", ["127.0.0.1", "no.such.host.invalid", "192.0.2.1", "a" * 300, ""])
def test_an_address_that_cannot_be_had_is_one_line(
    host: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert main(["sidecar", "--engine", URL, "--host", host, "--port", port]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"hiqcache: cannot listen on {host[:20]}") and err.count("\n") == 1


@pytest.mark.parametrize("sign", [signal.SIGTERM, signal.SIGINT])
def test_it_stops_at_once_when_told_to(sign: signal.Signals, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "hiqcache.cli", "sidecar", "--engine", URL, "--port", "0"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        said = re.fullmatch(
            rf"HiQCache sidecar of {URL}: (http://127\.0\.0\.1:\d+/)\n", process.stdout.readline()
        )
        assert said
        # The port is taken before the signals are: SIGINT is ignored where a shell's job began.
        assert httpx.get(f"{said[1]}healthz", trust_env=False, timeout=30).status_code == 200
        process.send_signal(sign)
        process.wait(10)
        assert "Traceback" not in process.stderr.read()
