"""When the scheduler asks what `HIQCACHE_VERIFY` has found, and for how many ranks."""

from __future__ import annotations

from typing import Any

import torch
from sglang.srt.runtime_context import get_parallel

from hiqcache.errors import IntegrityError


def wait_for(result: Any) -> None:
    """Wait until a batch is computed, as SGLang itself does next.

    Its restores are finished then, and so are the checks behind them.

    Parameters
    ----------
    result
        SGLang's, of one batch.
    """
    copied = getattr(result, "copy_done", None)
    if copied is not None:
        copied.synchronize()
    elif torch.cuda.is_available():
        torch.cuda.current_stream().synchronize()


def require_no_mismatch(here: int, verify: str) -> None:
    """Stop before an answer is made from damaged records.

    Parameters
    ----------
    here
        What this rank has found so far, in all its pools.
    verify
        `HIQCACHE_VERIFY`.

    Raises
    ------
    IntegrityError
        Names how many records are not what was backed up.
    """
    found = of_all_ranks(here)
    if found:
        raise IntegrityError(
            f"{found} of the tokens and layers that were read from L2 are not what was put "
            f"there (HIQCACHE_VERIFY={verify}): no answer was made from them; "
            f"look for errors of this machine's memory, then start again"
        )


def of_all_ranks(found: int, group: Any = None) -> int:
    """The sum over the ranks that hold a token's heads: all of them stop if one found something.

    A collective call: every rank comes here once for each batch that it prefills.

    Parameters
    ----------
    found
        This rank's.
    group
        A gloo group; SGLang's when None.
    """
    if group is None:
        if get_parallel().attn_tp_size == 1:
            return found
        group = get_parallel().attn_tp_group.cpu_group
    total = torch.tensor(found, dtype=torch.int64)
    torch.distributed.all_reduce(total, group=group)
    return int(total)
