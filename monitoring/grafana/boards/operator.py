"""The operator board: is it up, is it fast, does L2 give anything back."""

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

FIGURES = (
    Panel(
        title="Engine up",
        kind="stat",
        unit=PLAIN,
        queries=(Query(f"max by (variant) (hiqcache_up{{{V}}})"),),
        reading="Whether the sidecar got a readable /metrics from its engine at the last scrape. "
        "No figure for a variant means that its sidecar itself cannot be scraped.",
        action="DOWN during the first minutes is a server that still loads. Later, see "
        "HiQCacheEngineDown in docs/runbook.md.",
        width=6,
        height=5,
        words=(("0", "DOWN", "red"), ("1", "UP", "green")),
    ),
    Panel(
        title="Alerts firing",
        kind="stat",
        unit=PLAIN,
        queries=(
            Query(
                'max by (alertname, variant) (ALERTS{alertstate="firing"})'
                ' or on () label_replace(vector(0), "alertname", "none", "", "")',
                "{{alertname}} {{variant}}",
            ),
        ),
        reading="Alerts of Prometheus that fire now. The pod has no Alertmanager, so this is where "
        "they are seen.",
        action="Look the name up in docs/runbook.md.",
        width=6,
        height=5,
        words=(("0", "OK", "green"), ("1", "FIRING", "red")),
    ),
    Panel(
        title="TTFT p99",
        kind="stat",
        unit=SECONDS,
        queries=(Query(f"max by (variant) (hiqcache:ttft_seconds:p99_5m{{{V}}})"),),
        reading="Time to first token that 99 of 100 requests of the last 5 minutes stayed under, "
        "interpolated in SGLang's buckets (0.1, 0.2, 0.4, ... 400 s). Shows `idle` without "
        "requests.",
        action="Above 5 s see HiQCacheTTFTSlow in docs/runbook.md. One variant far above another: "
        "compare the restore panels below.",
        width=6,
        height=5,
        no_value="idle",
        decimals=2,
        steps=(Step(None, "green"), Step(2, "orange"), Step(5, "red")),
    ),
    Panel(
        title="Tokens per second",
        kind="stat",
        unit=TOKENS_PER_SECOND,
        queries=(Query(f"sum by (variant) (rate(hiqcache_generated_tokens_total{{{V}}}[1m]))"),),
        reading="Generated tokens per second over the last minute. SGLang counts a request's "
        "tokens when the request ends, so a single long answer shows as one step.",
        action="Zero with queued requests: the engine hangs or restarts, look at its log.",
        width=6,
        height=5,
        no_value="idle",
    ),
    Panel(
        title="L2 tokens held",
        kind="stat",
        unit=TOKENS,
        queries=(Query(f"sum by (variant) (hiqcache_l2_tokens{{{V}}})"),),
        reading="Tokens whose KV lies in host memory now, copies of what L1 holds included.",
        action="Zero under traffic: HiCache is off, or nothing was backed up yet (under "
        "`write_back` nothing is until L1 is full).",
        width=6,
        height=5,
    ),
    Panel(
        title="L2 tokens maximum",
        kind="stat",
        unit=TOKENS,
        queries=(
            Query(f"sum by (variant) (hiqcache_l2_tokens_max{{{V}}})"),
            Query(
                f"sum by (variant) (hiqcache_l2_tokens_max_unencoded{{{V}}})",
                "{{variant}} unencoded",
            ),
        ),
        reading="Tokens that L2 can hold, and beside them what the same memory would hold as L1 "
        "has them. The second is absent without HiQCache.",
        action="Equal for all variants: they were sized with `--hicache-ratio`, under which a "
        "smaller record saves memory instead. Use `--hicache-size`.",
        width=6,
        height=5,
    ),
    Panel(
        title="Bytes per token in L2",
        kind="stat",
        unit=BYTES_PER_TOKEN,
        queries=(
            Query(
                f"max by (variant) (hiqcache_l2_bytes_per_token_configured{{{V}}}"
                f" or hiqcache_l2_bytes_per_token_backup{{{V}}})"
            ),
        ),
        reading="What one token costs in L2, one rank: the codec's figure, or, for stock SGLang "
        "without HiQCache, bytes over tokens of its backups.",
        action="Equal for BF16 and another variant: that server runs without its codec. See the "
        "pool on the codec board.",
        width=6,
        height=5,
        decimals=0,
        no_value="no backup yet",
    ),
    Panel(
        title="Restored tokens",
        kind="stat",
        unit=TOKENS,
        queries=(Query(f"sum by (variant) (hiqcache_restore_tokens_total{{{V}}})"),),
        reading="Tokens brought back from L2 since the engine started: prompt tokens that were not "
        "computed again.",
        action="Zero after prompts that L1 had evicted came again: see HiQCacheL2Inert in "
        "docs/runbook.md.",
        width=6,
        height=5,
    ),
)

HITS = (
    Panel(
        title="Prompt tokens by where they came from: $variant",
        kind="stack",
        unit=TOKENS_PER_SECOND,
        queries=(
            Query(
                f"sum by (tier) (rate(hiqcache_hit_tokens_total{{{V}}}[$__rate_interval]))",
                "{{tier}}",
            ),
            Query(
                f"sum(rate(hiqcache_prompt_tokens_total{{{V}}}[$__rate_interval]))"
                f" - sum(rate(hiqcache_hit_tokens_total{{{V}}}[$__rate_interval]))",
                "computed",
            ),
        ),
        reading="Prompt tokens per second, split into hits in L1 (`device`), hits in L2 (`host`), "
        "hits in L3 (`storage`) and the rest, which was computed. Counted when a request ends.",
        action="A wide `computed` band over prompts that repeat: L2 is too small for them, or "
        "inert. Compare the variants: a larger L2 should turn `computed` into `host`.",
        width=24,
        repeat=True,
    ),
    Panel(
        title="Hit ratio by tier",
        kind="lines",
        unit=SHARE,
        queries=(
            Query(
                f"max by (variant, tier) (hiqcache:hit_ratio:rate5m{{{V}}})", "{{variant}} {{tier}}"
            ),
        ),
        reading="Share of the prompt tokens of the last 5 minutes that a tier saved. Empty without "
        "prompts; SGLang's own `cache_hit_rate` is not used, any probe resets it.",
        action="`host` at zero while prompts repeat: see HiQCacheL2Inert in docs/runbook.md.",
        maximum=1,
    ),
    Panel(
        title="L2 fill",
        kind="lines",
        unit=SHARE,
        queries=(Query(f"max by (variant) (hiqcache:l2_fill:ratio{{{V}}})"),),
        reading="Tokens held over tokens that fit. Under the same traffic an encoded L2 fills more "
        "slowly, because it has more room for the same bytes.",
        action="Full is normal: L2 evicts its oldest tokens, which SGLang does not count. Full "
        "together with dropped tokens (below) is not.",
        maximum=1,
    ),
)

TRANSFERS = (
    Panel(
        title="Backup bytes",
        kind="lines",
        unit=BYTES_PER_SECOND,
        queries=(
            Query(f"sum by (variant) (rate(hiqcache_backup_bytes_total{{{V}}}[$__rate_interval]))"),
        ),
        reading="Bytes a second from L1 to L2, idle time included. Tokens times bytes per token: "
        "the same traffic takes fewer bytes where a token takes fewer.",
        action="An encoded variant not below BF16 under the same traffic: check bytes per token.",
    ),
    Panel(
        title="Restore bytes",
        kind="lines",
        unit=BYTES_PER_SECOND,
        queries=(
            Query(
                f"sum by (variant) (rate(hiqcache_restore_bytes_total{{{V}}}[$__rate_interval]))"
            ),
        ),
        reading="Bytes a second from L2 back to L1, idle time included.",
        action="Flat at zero while L1 evicts and prompts repeat: see HiQCacheL2Inert in "
        "docs/runbook.md.",
    ),
    Panel(
        title="Load-back p99",
        kind="lines",
        unit=SECONDS,
        queries=(Query(f"max by (variant) (hiqcache:restore_duration_seconds:p99_5m{{{V}}})"),),
        reading="Time on the GPU's stream of the slowest 1 % of merged restores, waiting before "
        "the copy left out. The last bucket ends at 1 s: a line at 1 s means 1 s or more. Empty on "
        "a CPU, which cannot time its copies.",
        action="Above 0.5 s see HiQCacheRestoreSlow in docs/runbook.md.",
    ),
    Panel(
        title="TTFT",
        kind="lines",
        unit=SECONDS,
        queries=(
            Query(f"max by (variant) (hiqcache:ttft_seconds:p50_5m{{{V}}})", "{{variant}} p50"),
            Query(f"max by (variant) (hiqcache:ttft_seconds:p99_5m{{{V}}})", "{{variant}} p99"),
        ),
        reading="Median and 99th percentile over 5 minutes. A hit in L2 shows here: it replaces "
        "the prefill of the restored tokens by a copy.",
        action="Rises with queued requests: too much load. Rises with load-back p99: restores are "
        "the cause.",
    ),
)

PRESSURE = (
    Panel(
        title="Evicted and dropped tokens",
        kind="lines",
        unit=TOKENS_PER_SECOND,
        queries=(
            Query(
                f"sum by (variant) (hiqcache:evicted_tokens:rate5m{{{V}}})", "{{variant}} evicted"
            ),
            Query(
                f"sum by (variant) (hiqcache:dropped_tokens:rate5m{{{V}}})", "{{variant}} dropped"
            ),
        ),
        reading="Tokens that L1 gave up, and those among them that had no copy in L2 and are "
        "lost. `write_through_selective` does not count drops.",
        action="Dropped above 1 % of evicted: see HiQCacheL2FullAndDropping in docs/runbook.md.",
    ),
    Panel(
        title="Requests",
        kind="lines",
        unit=COUNT,
        queries=(
            Query(f"sum by (variant) (hiqcache_running_requests{{{V}}})", "{{variant}} running"),
            Query(f"sum by (variant) (hiqcache_queued_requests{{{V}}})", "{{variant}} queued"),
        ),
        reading="Requests that run and requests that wait for room.",
        action="A queue that does not shrink: more load than one GPU serves, or an L1 too small.",
    ),
    Panel(
        title="Memory against the limit",
        kind="lines",
        unit=BYTES,
        queries=(
            Query(f"max by (variant) (hiqcache_memory_bytes{{{V}}})", "{{variant}} used"),
            Query(f"max by (variant) (hiqcache_memory_limit_bytes{{{V}}})", "{{variant}} limit"),
        ),
        reading="Memory in use where the engine runs, L2 included, and the limit at which the "
        "kernel kills it: the container's, else the machine's memory. Brought up to date when "
        "something is copied. Absent without HiQCache.",
        action="Above 90 % see HiQCacheHostMemoryNearLimit in docs/runbook.md.",
    ),
    Panel(
        title="L2 bytes",
        kind="lines",
        unit=BYTES,
        queries=(
            Query(f"sum by (variant) (hiqcache_l2_bytes{{{V}}})", "{{variant}} held"),
            Query(
                f"sum by (variant) (hiqcache_pool_bytes{{{V}}} or hiqcache_companion_bytes{{{V}}})"
                f" or sum by (variant) (hiqcache_l2_bytes_max{{{V}}})",
                "{{variant}} allocated",
            ),
        ),
        reading="Host memory of L2, one rank: what its KV tokens take, and what all pools of the "
        "stack have pinned, those that stay unencoded among them. All of it is taken at the start, "
        "however many tokens are held.",
        action="Allocated plus SGLang's reserve of 10 GiB plus the process has to fit the "
        "container's limit.",
    ),
)

OPERATOR = Board(
    uid="hiqcache-operator",
    title="HiQCache: operator",
    purpose="Is it up, is it fast, and does L2 give anything back? Variants side by side. Grafana "
    "opens with this board.",
    rows=(
        Row("Now", FIGURES),
        Row("Hits", HITS),
        Row("Transfers and latency", TRANSFERS),
        Row("Pressure", PRESSURE),
    ),
    other="hiqcache-codec",
)
