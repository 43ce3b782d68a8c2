"""SGLang's benchmark client in this process, for `measure`: one run, its figures and requests.

`sglang.benchmark.serving.run_benchmark` keeps nothing between calls but its arguments, which
each call replaces, so that runs need no process of their own. Two of its habits are kept out:

- It stores generated prompts under the home directory and finds them again by the sizes, the
  seed and the tokenizer's class, not by the tokenizer: another model's prompts would be sent.
  Asking for routing keys (a header that only SGLang's router reads) makes it generate anew.
- It measures the time to the first chunk *with text*. Prompts go as token ids; answers need a
  tokenizer under which every id is text (`experiment/model.py` makes one for bare geometries).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from hiqcache.errors import HiQCacheError
from hiqcache.lab.experiment.workload import Workload

PER_TOKEN = ("itls", "generated_texts")
"""What the raw result drops: an entry for each token, most of its size."""


def client_arguments(url: str, model: str, workload: Workload, seed: int) -> dict[str, Any]:
    """The client's arguments, by the names of its command line."""
    return {
        "backend": "sglang",
        "base_url": url,
        "host": None,
        "port": None,
        "ready_check_timeout_sec": 0,
        "dataset_name": "generated-shared-prefix",
        "dataset_path": "",
        "model": model,
        "tokenizer": model,
        "num_prompts": workload.requests,
        "gsp_num_groups": workload.groups,
        "gsp_prompts_per_group": workload.prompts,
        "gsp_system_prompt_len": workload.prefix,
        "gsp_question_len": workload.question,
        "gsp_output_len": workload.output,
        "gsp_num_turns": 1,
        "gsp_fast_prepare": True,
        "gsp_send_routing_key": True,
        "tokenize_prompt": True,
        "request_rate": float("inf"),
        "max_concurrency": workload.concurrency,
        "seed": seed,
        "warmup_requests": 0,
        "flush_cache": False,
        "cache_report": True,
        "output_details": True,
        "output_file": os.devnull,
        "disable_tqdm": True,
        "disable_stream": False,
        "disable_ignore_eos": False,
        "return_logprob": False,
        "return_routed_experts": False,
        "temperature": 0.0,
        "extra_request_body": None,
        "apply_chat_template": False,
        "prompt_suffix": "",
        "profile": False,
        "pd_separated": False,
        "sharegpt_output_len": None,
        "sharegpt_context_len": None,
        "random_input_len": 0,
        "random_output_len": 0,
        "random_range_ratio": 0.0,
        "lora_name": None,
        "lora_request_distribution": "uniform",
        "lora_zipf_alpha": 1.5,
        "header": None,
        "tag": None,
    }


@cache
def _benchmark() -> Callable[[SimpleNamespace], dict[str, Any]]:
    from sglang.benchmark import serving

    # Each run would load the tokenizer twice: seconds beside runs of ten.
    serving.get_tokenizer = cache(serving.get_tokenizer)
    serving.check_chat_template = cache(serving.check_chat_template)
    return serving.run_benchmark  # type: ignore[no-any-return]


def run_client(arguments: dict[str, Any], log: Path) -> dict[str, Any]:
    """Run the client once; its printed output goes to `log`.

    Returns
    -------
    dict
        The client's result, without per-token lists and the server's description, with
        `latencies` (seconds of each request, its first token and the gaps after it).

    Raises
    ------
    HiQCacheError
        The client gave up, by exception or by `sys.exit`.
    """
    run_benchmark = _benchmark()
    with (
        log.open("a", encoding="utf-8") as out,
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(out),
    ):
        try:
            result: dict[str, Any] = run_benchmark(SimpleNamespace(**arguments))
        except (Exception, SystemExit) as error:
            raise HiQCacheError(
                f"SGLang's benchmark client failed: {type(error).__name__}: {error} (see {log})"
            ) from error
    latencies = [
        round(ttft + sum(gaps), 6)
        for ttft, gaps in zip(result["ttfts"], result["itls"], strict=True)
    ]
    kept = {k: v for k, v in result.items() if k not in (*PER_TOKEN, "server_info")}
    kept["ttfts"] = [round(ttft, 6) for ttft in result["ttfts"]]
    return kept | {"latencies": latencies}
