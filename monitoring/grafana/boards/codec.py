"""The codec board: which pool runs, and whether its records are what the codec says."""

from __future__ import annotations

from boards.panel import (
    BYTES,
    BYTES_PER_SECOND,
    BYTES_PER_TOKEN,
    COUNT,
    PLAIN,
    SECONDS,
    SHARE,
    TOKENS,
    TOKENS_PER_SECOND,
    Board,
    Panel,
    Query,
    Row,
    Step,
)

V = 'variant=~"$variant"'

POOL = (
    Panel(
        title="Pool",
        kind="table",
        unit=PLAIN,
        queries=(
            Query(
                f"max by (variant, codec, transfer, layout, page_size) (hiqcache_pool_info{{{V}}})"
            ),
        ),
        reading="The L2 pool that each engine runs. Codec `none` is SGLang's own pool, which is "
        "right for the BF16 variant with the plugin off.",
        action="Codec `none` on a variant that should have one: the plugin did not load. Look for "
        "`HIQCACHE_CODEC` and `SGLANG_PLUGINS` in docs/configuration.md.",
        width=24,
        height=5,
    ),
)

RECORD = (
    Panel(
        title="Bytes per token configured",
        kind="stat",
        unit=BYTES_PER_TOKEN,
        queries=(Query(f"max by (variant) (hiqcache_l2_bytes_per_token_configured{{{V}}})"),),
        reading="Bytes of one token's records by the codec's arithmetic: K and V, all layers, one "
        "rank. Absent without HiQCache.",
        action="Compare with `hiqcache capacity` for the model. Another figure means another "
        "model, codec or tensor-parallel size than you think.",
        width=6,
        height=5,
        decimals=0,
        no_value="no HiQCache",
    ),
    Panel(
        title="Measured on backup",
        kind="stat",
        unit=BYTES_PER_TOKEN,
        queries=(Query(f"max by (variant) (hiqcache_l2_bytes_per_token_backup{{{V}}})"),),
        reading="Bytes over tokens of all backups since the engine started.",
        action="Has to equal the configured figure exactly.",
        width=6,
        height=5,
        decimals=3,
        no_value="no backup yet",
    ),
    Panel(
        title="Measured on restore",
        kind="stat",
        unit=BYTES_PER_TOKEN,
        queries=(Query(f"max by (variant) (hiqcache_l2_bytes_per_token_restore{{{V}}})"),),
        reading="Bytes over tokens of all restores since the engine started.",
        action="Has to equal the configured figure exactly.",
        width=6,
        height=5,
        decimals=3,
        no_value="no restore yet",
    ),
    Panel(
        title="Measured less configured",
        kind="stat",
        unit=BYTES_PER_TOKEN,
        queries=(
            Query(
                f"max by (variant, direction) (hiqcache:bytes_per_token:difference{{{V}}})",
                "{{variant}} {{direction}}",
            ),
        ),
        reading="Zero, exactly: bytes and tokens are integers. A difference is an alarm, not "
        "noise.",
        action="See HiQCacheBytesPerTokenWrong in docs/runbook.md.",
        width=6,
        height=5,
        decimals=3,
        minimum=None,
        no_value="no copy yet",
        steps=(Step(None, "red"), Step(0, "green"), Step(0.001, "red")),
    ),
    Panel(
        title="Bytes per token, last 5 minutes",
        kind="lines",
        unit=BYTES_PER_TOKEN,
        queries=(
            Query(
                f"max by (variant) (hiqcache:backup_bytes_per_token:rate5m{{{V}}})",
                "{{variant}} backup",
            ),
            Query(
                f"max by (variant) (hiqcache:restore_bytes_per_token:rate5m{{{V}}})",
                "{{variant}} restore",
            ),
        ),
        reading="The same quotient over a moving window, which shows when a difference began. "
        "Exact up to the arithmetic of Prometheus' rate().",
        action="A step marks the moment; look at the engine's log there.",
    ),
    Panel(
        title="Records",
        kind="lines",
        unit=COUNT,
        queries=(
            Query(
                f"sum by (variant) (rate(hiqcache_backup_records_total{{{V}}}[$__rate_interval]))",
                "{{variant}} written",
            ),
            Query(
                f"sum by (variant) (rate(hiqcache_restore_records_total{{{V}}}[$__rate_interval]))",
                "{{variant}} read",
            ),
        ),
        reading="Records (one row of K or V of one layer) encoded and decoded a second. Absent "
        "without HiQCache.",
        action="Has to be tokens times layers times two. Zero while bytes move: rows travel "
        "without the codec.",
    ),
)

LINK = (
    Panel(
        title="Backup speed while copying",
        kind="lines",
        unit=BYTES_PER_SECOND,
        queries=(Query(f"max by (variant) (hiqcache:backup_bytes_per_busy_second:rate5m{{{V}}})"),),
        reading="Bytes over the seconds in which a backup ran: what link and encoder gave "
        "together. The bytes are encoded ones; divide by bytes per token for tokens per second.",
        action="An encoded variant far below BF16: the encoder, not the link, is the limit. See "
        "docs/codec-timing.md for what this GPU should reach.",
    ),
    Panel(
        title="Restore speed while copying",
        kind="lines",
        unit=BYTES_PER_SECOND,
        queries=(
            Query(f"max by (variant) (hiqcache:restore_bytes_per_busy_second:rate5m{{{V}}})"),
        ),
        reading="Bytes over the seconds in which a restore ran, gaps between layers included.",
        action="As above, for the decoder; a slow restore delays the first token.",
    ),
    Panel(
        title="Tokens moved",
        kind="lines",
        unit=TOKENS_PER_SECOND,
        queries=(
            Query(f"sum by (variant) (hiqcache:backup_tokens:rate5m{{{V}}})", "{{variant}} backup"),
            Query(
                f"sum by (variant) (hiqcache:restore_tokens:rate5m{{{V}}})", "{{variant}} restore"
            ),
        ),
        reading="Tokens a second in each direction, idle time included.",
        action="Backups without restores over hours: L2 does not pay. See HiQCacheL2Inert in "
        "docs/runbook.md.",
    ),
    Panel(
        title="Share of time in copies",
        kind="lines",
        unit=SHARE,
        queries=(
            Query(
                f"max by (variant) (rate(hiqcache_encode_seconds_total{{{V}}}[$__rate_interval]))",
                "{{variant}} encode",
            ),
            Query(
                f"max by (variant) (rate(hiqcache_decode_seconds_total{{{V}}}[$__rate_interval]))",
                "{{variant}} decode",
            ),
        ),
        reading="Seconds of encoding and decoding a second, the way over the link included. Absent "
        "without HiQCache.",
        action="Near 1: the link is busy all the time, and copies queue. Fewer bytes help: a "
        "codec with a smaller record.",
    ),
    Panel(
        title="Copy time p99",
        kind="lines",
        unit=SECONDS,
        queries=(
            Query(
                f"max by (variant) (hiqcache:backup_duration_seconds:p99_5m{{{V}}})",
                "{{variant}} backup",
            ),
            Query(
                f"max by (variant) (hiqcache:restore_duration_seconds:p99_5m{{{V}}})",
                "{{variant}} restore",
            ),
        ),
        reading="The slowest 1 % of merged copies over 5 minutes. One copy may carry many "
        "requests' tokens.",
        action="Long backups under `write_back` hold the scheduler: prefer `write_through`.",
    ),
)

HEALTH = (
    Panel(
        title="Staging bytes on the GPU",
        kind="stat",
        unit=BYTES,
        queries=(Query(f"max by (variant) (hiqcache_staging_bytes{{{V}}})"),),
        reading="GPU memory that the transfer keeps for rows on their way. Not in SGLang's KV "
        "budget, because the pool is built after sizing.",
        action="Out of memory on the GPU: lower `--mem-fraction-static` by this much.",
        width=6,
        height=5,
        no_value="no HiQCache",
    ),
    Panel(
        title="Heads that are not finite",
        kind="stat",
        unit=COUNT,
        queries=(Query(f"sum by (variant) (hiqcache_nonfinite_heads_total{{{V}}})"),),
        reading="Heads that held a NaN or an infinity when they were encoded, since the engine "
        "started. They restore as NaN, as they were.",
        action="Above zero: the model computed them, not the codec. Look for an overflow in its "
        "weights or its precision; answers from those tokens are garbage with any L2.",
        width=6,
        height=5,
        no_value="no codec looks",
        steps=(Step(None, "green"), Step(1, "red")),
    ),
    Panel(
        title="Restores",
        kind="stat",
        unit=COUNT,
        queries=(Query(f"sum by (variant) (hiqcache_restore_operations_total{{{V}}})"),),
        reading="Merged restores since the engine started. May stay at zero on a CPU while "
        "tokens are restored: SGLang times no copies there, and this is the count of the timings.",
        action="Many with few restored tokens each: hits are short, and each costs a launch.",
        width=6,
        height=5,
    ),
    Panel(
        title="Backed-up tokens",
        kind="stat",
        unit=TOKENS,
        queries=(Query(f"sum by (variant) (hiqcache_backup_tokens_total{{{V}}})"),),
        reading="Tokens written to L2 since the engine started.",
        action="Far above restored tokens: most of L2's traffic is never used.",
        width=6,
        height=5,
    ),
    Panel(
        title="Sidecar's read of the engine",
        kind="lines",
        unit=SECONDS,
        queries=(Query(f"max by (variant) (hiqcache_scrape_duration_seconds{{{V}}})"),),
        reading="How long the sidecar's last read of the engine's /metrics took. Prometheus waits "
        "4 s.",
        action="Near the time-out the engine's processes are starved of CPU.",
    ),
    Panel(
        title="Failed reads",
        kind="lines",
        unit=COUNT,
        queries=(
            Query(
                "sum by (variant, reason) (increase("
                f"hiqcache_scrape_errors_total{{{V}}}[$__rate_interval]))",
                "{{variant}} {{reason}}",
            ),
        ),
        reading="Reads of the engine that failed, by reason: timeout, connect, status, parse.",
        action="`connect` is a server that is not there, `timeout` one that is busy, `status` one "
        "that refuses (still starting, or without --enable-metrics), `parse` another program on "
        "that port. The status page says it in a sentence.",
    ),
    Panel(
        title="Rows not kept exactly",
        kind="stat",
        unit=COUNT,
        queries=(Query(f"sum by (variant) (hiqcache_inexact_rows_total{{{V}}})"),),
        reading="Rows that the codec `exact` could not keep bit for bit since the engine started. "
        "Each is within its bound.",
        action="Above zero: answers from those rows can differ. How many of the records that is, "
        "*Records* tells.",
        width=6,
        height=5,
        no_value="not exact",
        steps=(Step(None, "green"), Step(1, "orange")),
    ),
    Panel(
        title="Figures left out",
        kind="stat",
        unit=COUNT,
        queries=(
            Query(
                "sum by (variant) (increase("
                f"hiqcache_sidecar_unreadable_figures_total{{{V}}}[15m]))"
            ),
        ),
        reading="Figures that the engine gave as no number within 15 minutes; each is absent from "
        "its read, and all others are there.",
        action="See HiQCacheFiguresUnreadable in docs/runbook.md.",
        width=6,
        height=5,
        steps=(Step(None, "green"), Step(1, "orange")),
    ),
)

STACK = (
    Panel(
        title="Slots by pool",
        kind="table",
        unit=PLAIN,
        queries=(
            Query(
                f"max by (variant, pool) (hiqcache_pool_tokens_max{{{V}}}"
                f" or hiqcache_companion_slots{{{V}}})"
            ),
        ),
        reading="Tokens that each encoded pool holds (`kv`, `swa`, `draft`, `draft_swa`), and "
        "slots of those that stay as SGLang has them: states of `mamba`, tokens of `indexer`.",
        action="A pool so small that another is never used up: share `--hicache-size` otherwise "
        "(`HIQCACHE_SPLIT` in docs/configuration.md).",
        no_value="no HiQCache",
    ),
    Panel(
        title="Host memory by pool",
        kind="lines",
        unit=BYTES,
        queries=(
            Query(f"sum by (variant, pool) (hiqcache_pool_bytes{{{V}}})", "{{variant}} {{pool}}"),
            Query(
                f"sum by (variant, pool) (hiqcache_companion_bytes{{{V}}})",
                "{{variant}} {{pool}}, unencoded",
            ),
        ),
        reading="What each pool of the stack has pinned, one rank.",
        action="Much of it unencoded: a codec gains that much less.",
        no_value="no HiQCache",
    ),
    Panel(
        title="Restored by pool",
        kind="lines",
        unit=TOKENS_PER_SECOND,
        queries=(
            Query(
                "sum by (variant, pool) (rate("
                f"hiqcache_pool_restore_tokens_total{{{V}}}[$__rate_interval]))",
                "{{variant}} {{pool}}",
            ),
        ),
        reading="Tokens a second that came back to L1, of `mamba` states. Pools that share "
        "another's slots are not counted by SGLang.",
        action="`kv` alone in a stack of several: the others hold too little to be found.",
        no_value="no restore yet",
    ),
    Panel(
        title="Recurrent states held",
        kind="lines",
        unit=COUNT,
        queries=(
            Query(f"sum by (variant) (hiqcache_l2_states{{{V}}})", "{{variant}} held"),
            Query(f"sum by (variant) (hiqcache_l2_states_max{{{V}}})", "{{variant}} maximum"),
        ),
        reading="States of hybrid models in L2, and how many fit. Absent without recurrent state.",
        action="Full while KV is not: prompts whose state is gone are computed again. More states, "
        "fewer tokens: `HIQCACHE_TOKENS_PER_STATE` in docs/configuration.md.",
        no_value="no recurrent state",
    ),
)

CODEC = Board(
    uid="hiqcache-codec",
    title="HiQCache: codec",
    purpose="Which pool runs, are its records what the codec says, and how fast do they move?",
    rows=(
        Row("Pool", POOL),
        Row("Pools of a stack", STACK),
        Row("Record", RECORD),
        Row("Speed", LINK),
        Row("Health", HEALTH),
    ),
    other="hiqcache-operator",
)
