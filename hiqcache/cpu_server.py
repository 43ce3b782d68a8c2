"""What a server on the reference CPU platform (`engine/cpu_platform.py`) is started with.

Read by whatever starts one: `hiqcache serve` and the laboratory.
"""

from __future__ import annotations

# OpenMP's default is to spin at barriers, which on a busy machine costs a multiple of the work.
CPU_ENVIRONMENT = {
    "SGLANG_PLATFORM": "hiqcache_cpu",
    "OMP_WAIT_POLICY": "PASSIVE",
    # PyTorch keeps a compiled matrix product for each shape it has met, 1,024 in either of two
    # caches, a megabyte each: hundreds of megabytes as prompts of new lengths come.
    "LRU_CACHE_CAPACITY": "64",
    "ONEDNN_PRIMITIVE_CACHE_CAPACITY": "64",
}
CPU_ARGUMENTS = (
    *("--device", "cpu"),
    *("--attention-backend", "torch_native"),
    "--disable-overlap-schedule",
    "--disable-cuda-graph",
)

L1_OPTION = "--max-total-tokens"
L1_TOKENS = 8192
"""Where nobody says how large L1 is to be: without a figure SGLang sizes it by a GPU's memory."""
