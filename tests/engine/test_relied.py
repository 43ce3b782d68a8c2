"""What HiQCache relies on in SGLang beyond its hooks is missed before a server starts."""

from __future__ import annotations

import os

import pytest

from hiqcache.config import Config
from hiqcache.errors import HiQCacheError

pytestmark = pytest.mark.engine
os.environ["SGLANG_PLATFORM"] = "hiqcache_cpu"


def check(verify: str = "off") -> None:
    from hiqcache.engine.hooks import all_hooks, check_hooks

    check_hooks(all_hooks(Config(codec="int8", verify=verify)), verified=verify != "off")


@pytest.mark.parametrize("verify", ["off", "full"])
def test_the_pinned_release_has_all_of_it(verify: str) -> None:
    check(verify)


def test_an_override_that_nobody_calls_any_more_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    from sglang.srt.mem_cache.pool_host.base import HostKVCache
    from sglang.srt.mem_cache.pool_host.mha import MHATokenToKVPoolHost

    monkeypatch.delattr(HostKVCache, "_allocate_host_buffer")
    with pytest.raises(HiQCacheError, match=r"has no .*_allocate_host_buffer.*install the SGLang"):
        check()
    monkeypatch.undo()
    monkeypatch.setattr(
        MHATokenToKVPoolHost, "_initialize_transfer_views", lambda self, device_pool: None
    )
    with pytest.raises(
        HiQCacheError, match=r"takes \(self, device_pool\), expected \(self, buffer_info, write_ba"
    ):
        check()


def test_an_attribute_that_is_gone_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    from sglang.srt.mem_cache.hicache_storage import HiCacheFile

    monkeypatch.setattr(HiCacheFile, "__init__", lambda self, path: None)
    for name in [name for name in vars(HiCacheFile) if name not in ("__init__", "__module__")]:
        if callable(getattr(HiCacheFile, name)) and name != "_get_suffixed_key":
            monkeypatch.delattr(HiCacheFile, name)
    with pytest.raises(HiQCacheError, match=r"has no .*metadata_cache in .*HiCacheFile"):
        check()
