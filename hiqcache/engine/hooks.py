"""Where HiQCache attaches to SGLang: every hook, what it expects there, and what it does.

One table, so that a new SGLang release that moves a target is caught before a server starts
(`check_hooks`), and so that `docs/sglang-integration.md` can list exactly this.
"""

from __future__ import annotations

import inspect
import pkgutil
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

from sglang.srt.plugins.hook_registry import HookRegistry, HookType

from hiqcache.budget import STATE
from hiqcache.config import OFF, Config
from hiqcache.engine.relied import BY_VERIFICATION, RELIED
from hiqcache.engine.stop import end_with_own_code, fail_closed
from hiqcache.errors import HiQCacheError

WEIGHT_UPDATES = (
    *("update_weights_from_disk", "update_weights_from_tensor"),
    *("update_weights_from_distributed", "update_weights_from_ipc"),
    *("begin_weight_update", "end_weight_update"),
    *("resume_memory_occupation", "check_weights"),
)
"""SGLang's calls after which a parameter may be another; `check_weights` can make them random."""

FIX = "install the SGLang that this HiQCache is pinned to, `pip install 'hiqcache[sglang]'`"


@dataclass(frozen=True)
class Hook:
    """One attachment: a dotted target, the parameters it must have, and what we put there."""

    target: str
    parameters: tuple[str, ...]
    kind: HookType
    function: Callable[..., Any]


def check_hooks(hooks: tuple[Hook, ...], *, verified: bool) -> None:
    """Prove that every target, and all else that HiQCache relies on, is as it was written against.

    Parameters
    ----------
    verified
        What only `HIQCACHE_VERIFY` relies on is looked at, too.

    Raises
    ------
    HiQCacheError
        Names the first target that is missing or has changed, and SGLang's version.
    """
    for hook in hooks:
        try:
            target = pkgutil.resolve_name(hook.target)
        except (ImportError, AttributeError) as error:
            raise HiQCacheError(
                f"SGLang {version('sglang')} has no {hook.target} ({error}): {FIX}"
            ) from error
        found = tuple(inspect.signature(target).parameters)
        if found[: len(hook.parameters)] != hook.parameters:
            raise HiQCacheError(
                f"{hook.target} of SGLang {version('sglang')} takes ({', '.join(found)}), expected "
                f"({', '.join(hook.parameters)}): {FIX}"
            )
    for relied in (*RELIED, *(BY_VERIFICATION if verified else ())):
        if missing := relied.what_is_missing():
            raise HiQCacheError(f"SGLang {version('sglang')} {missing}: {FIX}")


def install(config: Config) -> None:
    """Check, register and apply every hook, and prove that each one took hold.

    SGLang applies hooks after all plugins have run and only logs one that fails, so HiQCache
    applies them itself and looks.

    Raises
    ------
    HiQCacheError
        A target is missing, has changed, or kept its original.
    """
    hooks = all_hooks(config)
    check_hooks(hooks, verified=config.verify != OFF)
    from hiqcache.engine.host_pool import EncodedHostPool

    EncodedHostPool.config = config
    for hook in hooks:
        HookRegistry.register(hook.target, hook.function, hook.kind)
    HookRegistry.apply_hooks()
    for hook in hooks:
        if not hasattr(pkgutil.resolve_name(hook.target), "__wrapped__"):
            raise HiQCacheError(f"SGLang did not apply the hook on {hook.target}; its log says why")


def all_hooks(config: Config) -> tuple[Hook, ...]:
    """Every hook of an enabled HiQCache, bound to its configuration.

    Raises
    ------
    HiQCacheError
        SGLang has not got what the hooks themselves import; names it, and SGLang's version.
    """
    try:
        from sglang.srt.configs.model_config import ModelConfig
        from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool
        from sglang.srt.mem_cache.pool_host.base import (
            HICACHE_HOST_MEMORY_RESERVE_BYTES,
            host_memory_budget_bytes,
        )

        from hiqcache.codec.registry import get_codec
        from hiqcache.engine import options, refusals, stack
        from hiqcache.engine.companions import announce_companions, companions, is_companion
        from hiqcache.engine.host_pool import EncodedHostPool
        from hiqcache.engine.l3 import check_pages
        from hiqcache.engine.memory_budget import one_look
        from hiqcache.engine.verification import require_no_mismatch, wait_for
        from hiqcache.engine.weights import Weights
    except ImportError as error:
        raise HiQCacheError(
            f"SGLang {version('sglang')} lacks what HiQCache attaches to ({error}): {FIX}"
        ) from error

    assert config.codec is not None
    name = config.codec
    codec = get_codec(name)

    def host_pool_class(buffer_info: Any) -> type:
        return EncodedHostPool

    weights = Weights()
    serving = False
    pools: list[EncodedHostPool] = []

    def only_known_pools(pool: Any, *args: Any, **kwargs: Any) -> None:
        if isinstance(pool, EncodedHostPool):
            pools.append(pool)
        elif not is_companion(pool):
            with fail_closed():
                refusals.refuse_foreign_pool(type(pool), name)

    def no_staging(*args: Any, **kwargs: Any) -> None:
        """SGLang's BF16 write-back staging: GPU memory that an encoded pool never reads."""

    def encoded_bytes(original: Callable[[Any], int], pool: Any) -> int:
        """What L2 needs to mirror a device pool, for SGLang's automatic ratio."""
        size = original(pool)
        if not isinstance(pool, MHATokenToKVPool):
            return size
        row: int = pool.head_num * (pool.head_dim + pool.v_head_dim) * pool.store_dtype.itemsize
        k = codec.layout("k", pool.head_num, pool.head_dim)
        v = codec.layout("v", pool.head_num, pool.v_head_dim)
        return size * (k.record_bytes + v.record_bytes) // row

    def refuse_server_args(result: Any, server_args: Any) -> None:
        with fail_closed():
            options.refuse_arguments(server_args, name)
            options.refuse_verification(server_args, config.verify)
            options.refuse_split(server_args, config.split)
            model = ModelConfig.from_server_args(server_args)
            refusals.refuse_model(
                model, server_args.hicache_storage_backend, server_args.hicache_mem_layout, name
            )
            folder = refusals.model_folder(model)
            options.refuse_checkpoint(server_args, model.hf_config.to_dict(), folder, name)

    def within_budget(
        original: Callable[..., None], cache: Any, params: Any, *args: Any, **kwargs: Any
    ) -> None:
        """Share `--hicache-size` among the pools that SGLang's assembler is about to build."""
        with fail_closed():
            pools_of_stack = stack.stack_of(params, codec)
            EncodedHostPool.shares = stack.shared(config, pools_of_stack)
            if EncodedHostPool.shares:
                refusals.refuse_memory(
                    stack.total_bytes(pools_of_stack, EncodedHostPool.shares, params.page_size),
                    host_memory_budget_bytes(0),
                    HICACHE_HOST_MEMORY_RESERVE_BYTES,
                )
        original(cache, params, *args, **kwargs)
        entries = cache.cache_controller.mem_pool_host.entries
        stack.warn_of_dead_memory(config, pools_of_stack, entries)

    def state_within_budget(
        original: Callable[..., Any], *args: Any, host_size: float, **kwargs: Any
    ) -> Any:
        if host_size > 0:
            host_size = EncodedHostPool.shares.get(STATE, host_size)
        return original(*args, host_size=host_size, **kwargs)

    def look_at_cache(cache: Any, context: Any) -> None:
        with fail_closed():
            refusals.refuse_cache(cache, EncodedHostPool, name)
        announce_companions(companions(cache.cache_controller.mem_pool_host.entries))

    def refuse_live_l3(
        original: Callable[..., tuple[bool, str]],
        tree: Any,
        storage_backend: str,
        storage_backend_extra_config_json: str | None = None,
        **kwargs: Any,
    ) -> tuple[bool, str]:
        nonlocal serving
        serving = True
        try:
            options.refuse_l3(storage_backend, storage_backend_extra_config_json, name)
            refusals.refuse_l3_of_stack(tree, name)
        except options.Refusal as refused:
            return False, str(refused)
        return original(tree, storage_backend, storage_backend_extra_config_json, **kwargs)

    def checked_backend(
        original: Callable[..., Any],
        factory: Any,
        backend_name: str,
        storage_config: Any,
        mem_pool_host: EncodedHostPool,
        **kwargs: Any,
    ) -> Any:
        backend = original(factory, backend_name, storage_config, mem_pool_host, **kwargs)
        with nullcontext() if serving else fail_closed():
            weights.attached()
            return check_pages(backend, mem_pool_host, weights)

    def loaded(result: Any, runner: Any) -> None:
        weights.loaded(runner)

    def caches_emptied(result: Any, cache: Any) -> None:
        weights.caches_emptied()

    def look_before_answering(processor: Any, batch: Any, result: Any) -> None:
        """Only a prefill's batch has restored rows, and nobody has seen its tokens yet."""
        with fail_closed(what="server"):
            wait_for(result)
            require_no_mismatch(sum(pool.mismatches() for pool in pools), config.verify)

    def end_with_the_schedulers_code(handler: Any, *args: Any, **kwargs: Any) -> None:
        watchdog = handler.tokenizer_manager._subprocess_watchdog
        end_with_own_code(watchdog._processes if watchdog is not None else ())

    managers = "sglang.srt.managers"
    verification = (
        Hook(
            f"{managers}.scheduler_components.batch_result_processor.SchedulerBatchResultProcessor"
            f".process_batch_result_prefill",
            ("self", "batch", "result"),
            HookType.BEFORE,
            look_before_answering,
        ),
        Hook(
            f"{managers}.tokenizer_manager.SignalHandler.running_phase_sigquit_handler",
            ("self", "signum", "frame"),
            HookType.BEFORE,
            end_with_the_schedulers_code,
        ),
    )
    cache = "sglang.srt.mem_cache"
    updater = f"{managers}.scheduler_components.weight_updater.SchedulerWeightUpdaterManager"
    return (
        Hook(
            "sglang.srt.model_executor.model_runner.ModelRunner.load_model",
            ("self",),
            HookType.AFTER,
            loaded,
        ),
        Hook(
            f"{cache}.unified_radix_cache.UnifiedRadixCache.reset",
            ("self",),
            HookType.AFTER,
            caches_emptied,
        ),
        *(
            Hook(f"{updater}.{name}", ("self", "recv_req"), HookType.AROUND, weights.updating)
            for name in WEIGHT_UPDATES
        ),
        *(verification if config.verify != OFF else ()),
        Hook(
            f"{cache}.pool_host.mha.get_mha_host_pool_cls",
            ("buffer_info",),
            HookType.REPLACE,
            host_pool_class,
        ),
        Hook(
            f"{cache}.pool_host.base.HostKVCache.__init__",
            ("self",),
            HookType.BEFORE,
            only_known_pools,
        ),
        Hook(
            f"{cache}.pool_host.mha.prepare_mha_write_back_staging",
            ("buffer_info",),
            HookType.REPLACE,
            no_staging,
        ),
        Hook(
            f"{cache}.kv_cache_builder.auto_size_hicache",
            ("params", "draft_plan", "enabled"),
            HookType.AROUND,
            one_look,
        ),
        Hook(f"{cache}.hicache_auto_size._pool_bytes", ("pool",), HookType.AROUND, encoded_bytes),
        Hook(
            f"{cache}.hybrid_cache.hybrid_pool_assembler.attach_hybrid_pool_to_unified_cache",
            ("cache", "params"),
            HookType.AROUND,
            within_budget,
        ),
        Hook(
            f"{cache}.hybrid_cache.hybrid_pool_assembler.build_mamba_host_pool",
            ("mamba_pool", "pool_info", "host_size"),
            HookType.AROUND,
            state_within_budget,
        ),
        Hook(f"{cache}.registry.create_tree_cache", ("ctx",), HookType.AFTER, look_at_cache),
        Hook(
            f"{cache}.unified_radix_cache.UnifiedRadixCache.attach_storage_backend",
            ("self", "storage_backend", "storage_backend_extra_config_json"),
            HookType.AROUND,
            refuse_live_l3,
        ),
        Hook(
            f"{cache}.storage.backend_factory.StorageBackendFactory.create_backend",
            ("backend_name", "storage_config", "mem_pool_host"),
            HookType.AROUND,
            checked_backend,
        ),
        Hook(
            "sglang.srt.server_args.ServerArgs.check_server_args",
            ("self",),
            HookType.AFTER,
            refuse_server_args,
        ),
    )
