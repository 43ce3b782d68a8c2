"""Breaks what HiQCache attaches to, in every process that has this folder on PYTHONPATH.

Python imports `sitecustomize` at start. BREAK says what: `remove` takes the hook target out of
SGLang, `rename` changes its parameters, `import` makes HiQCache's own hooks fail to import.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import os
import sys
from types import ModuleType

TARGETS = {
    "remove": "sglang.srt.mem_cache.pool_host.mha",
    "rename": "sglang.srt.mem_cache.pool_host.mha",
    "import": "hiqcache.engine.hooks",
}
BREAK = os.environ["BREAK"]


class Breaker(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path=None, target=None):  # type: ignore[no-untyped-def]
        if name != TARGETS[BREAK]:
            return None
        if BREAK == "import":
            raise ImportError("broken on purpose")
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        assert spec is not None and spec.loader is not None
        self.loader = spec.loader
        spec.loader = self
        return spec

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self.loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self.loader.exec_module(module)
        original = module.get_mha_host_pool_cls
        if BREAK == "remove":
            del module.get_mha_host_pool_cls
        else:

            def get_mha_host_pool_cls(pool, buffer_info):  # type: ignore[no-untyped-def]
                return original(buffer_info)

            module.get_mha_host_pool_cls = get_mha_host_pool_cls  # type: ignore[attr-defined]


sys.meta_path.insert(0, Breaker())
