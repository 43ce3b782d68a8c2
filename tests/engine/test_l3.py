"""Real servers with an L3: what one writes another reads, and what went bad is computed again."""

from __future__ import annotations

import contextlib
import re
import subprocess
import time
from array import array
from collections.abc import Iterator
from pathlib import Path

import pytest

from hiqcache.codec.page import HEADER_BYTES
from hiqcache.lab.serving.client import Answer
from tests.engine.case import prompts
from tests.engine.l3 import (
    FILE,
    NEW_TOKENS,
    PAGE,
    WRITE_SECONDS,
    L3Server,
    l3_server,
    pages,
    settled,
    whole_pages,
)
from tests.kubernetes import service_links

pytestmark = pytest.mark.engine

LAYERS = 30
RECORD_BYTES = 256
"""SmolLM2-135M under `int8`: 3 heads x 64 and 3 scales, rounded up."""
PAGE_BYTES = HEADER_BYTES + PAGE * LAYERS * 2 * RECORD_BYTES
DISK_BYTES = 192 << 20


def tokens(model: str, text: str) -> list[int]:
    from transformers import AutoTokenizer

    ids: list[int] = AutoTokenizer.from_pretrained(model)(text)["input_ids"]
    return ids


def page_files(folder: Path, ids: list[int]) -> list[Path]:
    """The stored pages of a prompt's whole pages, from its start on."""
    from sglang.srt.mem_cache.utils import get_hash_str

    whole = (len(ids) - 1) // PAGE * PAGE
    keys = get_hash_str(array("q", ids[:whole]), None, PAGE)
    return [path for key in keys for path in folder.glob(f"{key}-*.bin")]


@pytest.fixture(scope="module")
def disk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A file system of its own, small enough to fill, where one can be mounted."""
    path = tmp_path_factory.mktemp("l3")
    size = f"size={DISK_BYTES}"
    mount = ["mount", "-t", "tmpfs", "-o", size, "hiqcache-test", str(path)]
    mounted = subprocess.run(mount, capture_output=True).returncode == 0
    yield path
    if mounted:
        subprocess.run(["umount", str(path)], check=True)


@pytest.fixture(scope="module")
def first(model: str, out: Path, disk: Path) -> list[Answer]:
    """What a first server answered, from L2 where it could; its pages stay in L3."""
    texts = prompts(4)
    folder = {"SGLANG_HICACHE_FILE_BACKEND_STORAGE_DIR": str(disk)}
    # As in a pod of deploy/kubernetes, if that had service links.
    variables = folder | service_links()
    with l3_server(model, out, "l3-first", "int8", FILE, **variables) as served:
        for text in prompts(6):
            served.ask(text)
        settled(lambda: len(pages(disk)))
        answers = [served.ask(text) for text in texts]
        assert served.bad_pages() == {"foreign": 0, "damaged": 0, "unreadable": 0}
        assert served.counted("page_bytes") == PAGE_BYTES
    assert all(a.host_tokens and not a.storage_tokens for a in answers), "L2, not L3, answered"
    return answers


@pytest.fixture(scope="module")
def second(model: str, out: Path, disk: Path, first: list[Answer]) -> Iterator[L3Server]:
    """Another server on the same L3."""
    folder = {"SGLANG_HICACHE_FILE_BACKEND_STORAGE_DIR": str(disk)}
    # What L3 brings to L2 is verified on its way on.
    variables = folder | {"HIQCACHE_VERIFY": "full"}
    with l3_server(model, out, "l3-second", "int8", FILE, **variables) as served:
        yield served


def test_a_page_file_is_its_records_and_16_bytes(first: list[Answer], disk: Path) -> None:
    assert PAGE_BYTES == 16 + 16 * 15_360
    stored = pages(disk)
    assert len(stored) >= sum(whole_pages(answer) for answer in first)
    assert {path.stat().st_size for path in stored} == {PAGE_BYTES}
    names = {path.name.partition("_")[2] for path in stored}
    assert len(names) == 1
    assert "-hiqcache-int8-r1-bfloat16-30x3x64.64-p16-page_first_0_1.bin" in names.pop()


def test_kubernetes_variables_are_named_in_one_warning(first: list[Answer], out: Path) -> None:
    log = (out / "l3-first.log").read_text()
    (warning,) = re.findall("^HiQCache warns: .*$", log, re.MULTILINE)
    assert all(name in warning for name in service_links())


def test_a_restarted_server_restores_from_l3(second: L3Server, first: list[Answer]) -> None:
    for text, before in zip(prompts(4), first, strict=True):
        answer = second.ask(text)
        assert answer.storage_tokens == whole_pages(answer) * PAGE
        assert answer.device_tokens == 0
        # The same records, so the same rows and the same answer as L2 gave.
        assert answer.token_ids == before.token_ids
    assert sum(second.bad_pages().values()) == 0


@pytest.mark.parametrize("policy", ["wait_complete", "timeout", "best_effort"])
def test_every_prefetch_policy_serves_from_l3(
    policy: str, second: L3Server, first: list[Answer]
) -> None:
    second.forget()
    status, text = second.attach("file", prefetch_policy=policy)
    assert (status, "policies updated" in text) == (200, True), text
    for text, before in zip(prompts(4), first, strict=True):
        answer = second.ask(text)
        if policy == "best_effort":
            # It takes what has come by the time the request is due: on an idle server, little.
            assert answer.storage_tokens % PAGE == 0
        else:
            assert answer.storage_tokens == whole_pages(answer) * PAGE
            assert answer.token_ids == before.token_ids
    status, text = second.attach("file", prefetch_policy="wait_complete")
    assert status == 200, text


def test_bad_pages_are_counted_and_computed_again(
    second: L3Server, first: list[Answer], disk: Path, model: str
) -> None:
    ids = tokens(model, prompts(1)[0])
    chain = page_files(disk, ids)
    assert len(chain) == whole_pages(first[0])
    kept = chain[10].read_bytes()
    flipped = bytearray(kept)
    flipped[len(flipped) // 2] ^= 1
    chain[10].write_bytes(flipped)
    chain[30].write_bytes(chain[30].read_bytes()[:-100])
    second.forget()
    answer = second.ask(ids)
    assert answer.storage_tokens == 10 * PAGE
    assert answer.device_tokens == answer.host_tokens == 0
    assert second.bad_pages() == {"foreign": 0, "damaged": 1, "unreadable": 1}
    assert "is damaged and is computed again" in second.server.output()
    # What was computed again was written again, whole.
    settled(lambda: len(pages(disk)))
    assert page_files(disk, ids) == chain
    assert {path.stat().st_size for path in chain} == {PAGE_BYTES}
    second.forget()
    assert second.ask(ids).storage_tokens == whole_pages(first[0]) * PAGE
    assert sum(second.bad_pages().values()) == 2


def test_a_full_disk_loses_writes_and_nothing_else(
    second: L3Server, disk: Path, model: str
) -> None:
    if not disk.is_mount():
        pytest.skip("mounting a small file system needs root")
    filler = disk / "filler"
    with filler.open("wb") as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(1 << 20))
    stored = len(pages(disk))
    for text in prompts(8)[6:]:
        assert len(second.ask(text).token_ids) == NEW_TOKENS
    deadline = time.monotonic() + WRITE_SECONDS
    while second.counted("failed_writes_total") < 2 and time.monotonic() < deadline:
        time.sleep(0.2)
    assert second.counted("failed_writes_total") >= 2
    assert len(pages(disk)) == stored
    assert not list(disk.glob(".*"))
    filler.unlink()
    ids = tokens(model, prompts(9)[8])
    second.ask(ids)
    settled(lambda: len(pages(disk)))
    assert len(page_files(disk, ids)) == (len(ids) - 1) // PAGE
    assert {path.stat().st_size for path in pages(disk)} == {PAGE_BYTES}


def test_an_untested_backend_cannot_be_attached(second: L3Server) -> None:
    status, text = second.admin("DELETE", "/hicache/storage-backend", {})
    assert status == 200, text
    status, text = second.attach("nixl")
    assert status == 400
    assert "HIQCACHE_CODEC=int8 supports --hicache-storage-backend file, dynamic, mooncake" in text
    status, text = second.attach("file")
    assert status == 200, text
