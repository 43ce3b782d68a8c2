"""Every figure of an engine, declared once: metrics, JSON, page and docs/metrics.md follow from it.

A counter that SGLang creates only at its first event is 0 before it. Any other figure that the
engine has not produced is None, and nothing is ever estimated.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from hiqcache.sidecar.arithmetic import floored, kv_bytes_per_token, product, quotient
from hiqcache.sidecar.figure import Figure, Reader, Section
from hiqcache.sidecar.samples import DROP_REASONS, FAULTS, OTHER, TIERS, Samples, lines_of
from hiqcache.sidecar.source import KV, AllRanks, Buckets, ByPool, Labels, Largest, Split, Total

NO_CODEC = "none"
NO_POOL = {"codec": NO_CODEC, "transfer": "", "layout": "", "page_size": ""}

# SGLang 0.5.23's own bounds, for the zeros before the first observation (metrics_collector.py).
RESTORE_BOUNDS = (
    *(0.001, 0.002, 0.003, 0.004, 0.005, 0.006, 0.007, 0.008, 0.009),
    *(0.01, 0.02, 0.03, 0.04, 0.05, 0.1, 0.2, 0.5, 1.0),
)
BACKUP_BOUNDS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)
TTFT_BOUNDS = (
    *(0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 2.0, 4.0, 6.0, 8.0, 10.0),
    *(20.0, 40.0, 60.0, 80.0, 100.0, 200.0, 400.0),
)

UNHOOKED = "without HiQCache"
NO_L2 = "without an L2"
NO_L3 = "without HiQCache and an L3"
UNVERIFIED = "without `HIQCACHE_VERIFY`"


class Figures(Reader):
    """Everything the sidecar says about an engine that answers; counters since it started.

    A figure reads a source or other figures, and has a metric's name (empty: JSON alone), a unit
    and a help. Its JSON field is called as its attribute unless `json` says otherwise.
    """

    # A table: each figure in as few lines as its words need.
    # fmt: off
    storage = Section("How L2 stores KV")
    pool = Figure(Labels("hiqcache_engine_pool_info", NO_POOL), "hiqcache_pool_info", "none",
        "Always 1. `codec` is `none` and the rest empty if HiQCache is not in the engine.",
        labels=tuple(NO_POOL), json="")
    rows = Figure(Labels("hiqcache_engine_pool_info", {"rows": OTHER}), "", "none",
        "What L1's rows are.", labels=("rows",), json="")
    pool_of_hiqcache = Figure(lambda f: {**f.pool, **f.rows} if f.encoded else None, "", "none",
        "How L2 stores KV.", labels=(*NO_POOL, "rows"), absent=UNHOOKED, json="pool")
    bytes_per_token = Figure(Largest("hiqcache_engine_bytes_per_token", KV),
        "hiqcache_l2_bytes_per_token_configured", "bytes/token",
        "Layers x (K record + V record), one rank.",
        absent=UNHOOKED, json="bytes_per_token.configured")
    backup_bytes_per_token = Figure(
        lambda f: f.measured(f.backup_bytes, f.backup_tokens, f.pool_backup_tokens),
        "hiqcache_l2_bytes_per_token_backup", "bytes/token",
        "Measured, one rank; what other pools of the stack take is taken off.",
        origin="`sglang:hicache_backup_bytes_total` / `sglang:hicache_backup_tokens_total`",
        absent="before the first backup", json="bytes_per_token.backup")
    restore_bytes_per_token = Figure(
        lambda f: f.measured(f.restore_bytes, f.restore_tokens, f.pool_restore_tokens),
        "hiqcache_l2_bytes_per_token_restore", "bytes/token",
        "Measured, one rank; what other pools of the stack take is taken off.",
        origin="`sglang:load_back_bytes_total` / `sglang:load_back_tokens_total`",
        absent="before the first restore", json="bytes_per_token.restore")
    unencoded_bytes_per_token = Figure(Largest("hiqcache_engine_unencoded_bytes_per_token", KV),
        "hiqcache_l2_bytes_per_token_unencoded", "bytes/token",
        "What a token would take as L1 has it, one rank.",
        absent=UNHOOKED, json="bytes_per_token.unencoded")
    l1_tokens_max = Figure(Total("sglang:max_total_num_tokens"), "", "tokens",
        "Tokens that L1 can hold.")
    l2_tokens = Figure(Total("sglang:hicache_host_used_tokens"), "hiqcache_l2_tokens", "tokens",
        "Held in L2 now, those that L1 also holds included.", absent=NO_L2, json="l2.tokens")
    l2_tokens_max = Figure(Total("sglang:hicache_host_total_tokens"),
        "hiqcache_l2_tokens_max", "tokens", "What L2 can hold.", absent=NO_L2, json="l2.tokens_max")
    l2_bytes = Figure(lambda f: product(f.l2_tokens, f.any_bytes_per_token),
        "hiqcache_l2_bytes", "bytes",
        "Bytes of L2 that hold tokens, one rank: at the configured bytes per token, else as "
        "measured on backup.", origin="`hiqcache_l2_tokens` x bytes per token",
        absent="if neither is known", json="l2.bytes")
    kv_bytes = Figure(Total("hiqcache_engine_pool_bytes", pool=KV), "", "bytes",
        "What HiQCache allocated for KV, one rank.", absent=UNHOOKED, json="")
    l2_bytes_max = Figure(
        lambda f: f.known("kv_bytes", product(f.l2_tokens_max, f.any_bytes_per_token)),
        "hiqcache_l2_bytes_max", "bytes", "Bytes of L2 in all, one rank: what the pool allocated; "
        "without HiQCache, maximum tokens x bytes per token.",
        origin="`hiqcache_engine_pool_bytes`", absent="if neither is known", json="l2.bytes_max")
    l2_tokens_max_unencoded = Figure(
        lambda f: floored(quotient(f.l2_bytes_max, f.unencoded_bytes_per_token)),
        "hiqcache_l2_tokens_max_unencoded", "tokens",
        "What the same memory would hold as L1 has it.", absent=UNHOOKED,
        origin="`hiqcache_l2_bytes_max` / `hiqcache_l2_bytes_per_token_unencoded`",
        json="l2.tokens_max_unencoded")
    memory_bytes = Figure(Largest("hiqcache_engine_memory_bytes"), "hiqcache_memory_bytes", "bytes",
        "In use where the engine runs, all its processes and its L2, without files that the kernel "
        "can drop. Brought up to date by copies, at most once a second.", absent=UNHOOKED)
    memory_limit_bytes = Figure(Largest("hiqcache_engine_memory_limit_bytes"),
        "hiqcache_memory_limit_bytes", "bytes",
        "At which the kernel kills: the container's limit, else the machine's memory.",
        absent=UNHOOKED)
    staging_bytes = Figure(Total("hiqcache_engine_staging_bytes"),
        "hiqcache_staging_bytes", "bytes",
        "GPU memory that the transfer keeps for itself, one rank.", absent=UNHOOKED)

    pools = Section("Pools of a stack")
    pool_tokens_max = Figure(ByPool("hiqcache_engine_pool_tokens"),
        "hiqcache_pool_tokens_max", "tokens", "What an encoded pool can hold: `kv`, and beside it "
        "`swa` (sliding windows), `draft` and `draft_swa` (layers of a draft model).",
        labels=("pool",), absent=UNHOOKED, json="pools.tokens_max")
    pool_bytes_per_token = Figure(ByPool("hiqcache_engine_bytes_per_token", largest=True),
        "hiqcache_pool_bytes_per_token", "bytes/token", "Layers x (K record + V record), one rank.",
        labels=("pool",), absent=UNHOOKED, json="pools.bytes_per_token")
    pool_bytes = Figure(ByPool("hiqcache_engine_pool_bytes"),
        "hiqcache_pool_bytes", "bytes", "What an encoded pool allocated, one rank.",
        labels=("pool",), absent=UNHOOKED, json="pools.bytes")
    pool_backup_tokens = Figure(ByPool("sglang:hicache_backup_tokens_total"),
        "hiqcache_pool_backup_tokens_total", "tokens",
        "Copied to L2; of `mamba`, states. A pool that shares another's slots has none.",
        labels=("pool",), absent="before the first backup", json="pools.backup_tokens")
    pool_restore_tokens = Figure(ByPool("sglang:load_back_tokens_total"),
        "hiqcache_pool_restore_tokens_total", "tokens",
        "Copied back to L1; of `mamba`, states. A pool that shares another's slots has none.",
        labels=("pool",), absent="before the first restore", json="pools.restore_tokens")
    companion_bytes = Figure(ByPool("hiqcache_engine_companion_bytes"),
        "hiqcache_companion_bytes", "bytes",
        "Host memory of a pool that stays unencoded, as SGLang has it, one rank: `mamba` "
        "(recurrent state), `indexer` (index keys).",
        labels=("pool",), absent="without such a pool", json="pools.companion_bytes")
    companion_slots = Figure(ByPool("hiqcache_engine_companion_slots"),
        "hiqcache_companion_slots", "slots",
        "States, or tokens with index keys, that it can hold.",
        labels=("pool",), absent="without such a pool", json="pools.companion_slots")
    states = Figure(Total("sglang:hicache_host_mamba_used_states"),
        "hiqcache_l2_states", "states", "Recurrent states held in L2 now.",
        absent="without recurrent state", json="l2.states")
    states_max = Figure(Total("sglang:hicache_host_mamba_total_states"),
        "hiqcache_l2_states_max", "states", "Recurrent states that L2 can hold.",
        absent="without recurrent state", json="l2.states_max")

    hits = Section("Where prompts are found")
    prompt_tokens = Figure(Total("sglang:prompt_tokens_total", 0.0),
        "hiqcache_prompt_tokens_total", "tokens",
        "Tokens of the prompts of finished requests, hits included.")
    hit_tokens = Figure(Split("sglang:cached_tokens_total", "cache_source", TIERS),
        "hiqcache_hit_tokens_total", "tokens", "Prompt tokens that were not computed: found in L1 "
        "(`device`), restored from L2 (`host`) or from L3 (`storage`).", labels=("tier",))
    hit_rate = Figure(
        lambda f: f.hit_tokens and quotient(sum(f.hit_tokens.values()), f.prompt_tokens),
        "hiqcache_hit_rate", "ratio", "Hit tokens of all tiers over prompt tokens, since the "
        "engine started. For a time window divide the counters' rates.",
        origin="hit tokens / prompt tokens", absent="before the first prompt")

    copies = Section("Copies between L1 and L2")
    backup_tokens = Figure(Total("sglang:hicache_backup_tokens_total", 0.0, KV),
        "hiqcache_backup_tokens_total", "tokens", "Copied to L2.", json="backup.tokens")
    backup_bytes = Figure(Total("sglang:hicache_backup_bytes_total", 0.0),
        "hiqcache_backup_bytes_total", "bytes",
        "Copied to L2, one rank: whole records, padding included.", json="backup.bytes")
    backup_seconds = Figure(Buckets("sglang:hicache_backup_duration_seconds", BACKUP_BOUNDS),
        "hiqcache_backup_duration_seconds", "seconds",
        "One merged copy to L2 on the GPU's stream, waiting not included.", json="")
    backup_timed = Figure(lambda f: f.backup_seconds and f.backup_seconds.count, "", "copies",
        "Copies that were timed; 0 on a CPU.", json="backup.timed_operations")
    backup_timed_seconds = Figure(lambda f: f.backup_seconds and f.backup_seconds.total,
        "", "seconds", "What the timed copies took together.", json="backup.timed_seconds")
    backup_records = Figure(Total("hiqcache_engine_backup_records_total"),
        "hiqcache_backup_records_total", "records",
        "Records written, one rank: tokens x layers x 2.", absent=UNHOOKED, json="backup.records")
    encode_seconds = Figure(Total("hiqcache_engine_encode_seconds_total"),
        "hiqcache_encode_seconds_total", "seconds",
        "Time in which rows were encoded and carried to L2.",
        absent=UNHOOKED, json="backup.codec_seconds")
    restore_tokens = Figure(Total("sglang:load_back_tokens_total", 0.0, KV),
        "hiqcache_restore_tokens_total", "tokens", "Copied back to L1.", json="restore.tokens")
    restore_bytes = Figure(Total("sglang:load_back_bytes_total", 0.0),
        "hiqcache_restore_bytes_total", "bytes",
        "Copied back to L1, one rank: whole records, padding included.", json="restore.bytes")
    restore_seconds = Figure(Buckets("sglang:load_back_duration_seconds", RESTORE_BOUNDS),
        "hiqcache_restore_duration_seconds", "seconds",
        "One merged copy back to L1 on the GPU's stream, waiting not included.", json="")
    restore_timed = Figure(lambda f: f.restore_seconds and f.restore_seconds.count, "", "copies",
        "Copies that were timed; 0 on a CPU.", json="restore.timed_operations")
    restore_timed_seconds = Figure(lambda f: f.restore_seconds and f.restore_seconds.total,
        "", "seconds", "What the timed copies took together.", json="restore.timed_seconds")
    restore_records = Figure(Total("hiqcache_engine_restore_records_total"),
        "hiqcache_restore_records_total", "records",
        "Records read, one rank: tokens x layers x 2.", absent=UNHOOKED, json="restore.records")
    decode_seconds = Figure(Total("hiqcache_engine_decode_seconds_total"),
        "hiqcache_decode_seconds_total", "seconds",
        "Time in which records were carried from L2 and decoded.",
        absent=UNHOOKED, json="restore.codec_seconds")
    operations = Figure(Total("hiqcache_engine_restore_operations_total", pool=KV), "", "copies",
        "Restores that HiQCache began.", absent=UNHOOKED, json="")
    restore_operations = Figure(lambda f: f.known("operations", f.restore_timed),
        "hiqcache_restore_operations_total", "copies", "Merged copies back to L1.",
        origin="`hiqcache_engine_restore_operations_total`, else the count of "
        "`sglang:load_back_duration_seconds`")
    nonfinite_heads = Figure(Total("hiqcache_engine_nonfinite_heads_total"),
        "hiqcache_nonfinite_heads_total", "heads",
        "Encoded heads that held a NaN or an infinity, one rank; each restores as NaN.",
        absent="without HiQCache and under `bf16`, which looks at no head")
    inexact_rows = Figure(Total("hiqcache_engine_inexact_rows_total"),
        "hiqcache_inexact_rows_total", "rows",
        "Rows that the codec `exact` could not keep bit for bit, one rank; each is within its "
        "bound.", absent="under every other codec")
    checksum_bytes = Figure(Total("hiqcache_engine_checksum_bytes"),
        "hiqcache_checksum_bytes", "bytes",
        "Host memory beside L2 that holds checksums, one rank: 4 bytes per token and layer.",
        absent=UNVERIFIED, json="")
    mismatches = Figure(AllRanks("hiqcache_engine_mismatches_total"),
        "hiqcache_mismatches_total", "pairs",
        "Pairs of K and V records, one per token and layer, that were read from L2 and are not "
        "what was put there; all ranks. The engine stops at the first: 1 is seldom seen here.",
        absent=UNVERIFIED)
    l3_page_bytes = Figure(Largest("hiqcache_engine_l3_page_bytes", KV),
        "hiqcache_l3_page_bytes", "bytes", "One page in L3, one rank: its records and 16 bytes.",
        absent=NO_L3, json="")
    l3_bad_pages = Figure(
        Split("hiqcache_engine_l3_bad_pages_total", "reason", FAULTS, all_ranks=True),
        "hiqcache_l3_bad_pages_total", "pages",
        "Read from L3 and not used; all ranks. `damaged`: the checksum differs. `foreign`: "
        "another format. `unreadable`: too short, or the backend failed.",
        labels=("reason",), absent=NO_L3)
    l3_failed_writes = Figure(AllRanks("hiqcache_engine_l3_failed_writes_total"),
        "hiqcache_l3_failed_writes_total", "batches",
        "Batches of up to 128 pages that the backend did not write, all or in part; all ranks.",
        absent=NO_L3)
    dropped_tokens = Figure(
        Split("sglang:hicache_dropped_tokens_total", "reason", DROP_REASONS),
        "hiqcache_dropped_tokens_total", "tokens", "Lost from L1 without a copy in L2: "
        "`host_pressure` (under `write_back`), `write_through_unbacked_eviction`.",
        labels=("reason",))
    evicted_tokens = Figure(Total("sglang:evicted_tokens_total", 0.0),
        "hiqcache_evicted_tokens_total", "tokens", "L1 slots freed, with or without a copy in L2.")

    requests = Section("Requests")
    ttft = Figure(Buckets("sglang:time_to_first_token_seconds", TTFT_BOUNDS),
        "hiqcache_ttft_seconds", "seconds", "From the request's arrival to its first token.",
        json="")
    ttft_requests = Figure(lambda f: f.ttft and f.ttft.count, "", "requests",
        "Requests that got a first token.", json="ttft.requests")
    ttft_seconds = Figure(lambda f: f.ttft and f.ttft.total, "", "seconds",
        "The sum of their times to first token.", json="ttft.seconds")
    ttft_mean_seconds = Figure(lambda f: quotient(f.ttft_seconds, f.ttft_requests), "", "seconds",
        "seconds / requests.", absent="before the first", json="ttft.mean_seconds")
    generated_tokens = Figure(Total("sglang:generation_tokens_total", 0.0),
        "hiqcache_generated_tokens_total", "tokens", "Generated tokens of finished requests.")
    running_requests = Figure(Total("sglang:num_running_reqs", beside_parts=True),
        "hiqcache_running_requests", "requests", "Computed now.")
    queued_requests = Figure(Total("sglang:num_queue_reqs", beside_parts=True),
        "hiqcache_queued_requests", "requests", "Waiting now.")
    # fmt: on

    def measured(
        self, copied: float | None, tokens: float | None, by_pool: Mapping[str, float] | None
    ) -> float | None:
        """Bytes per KV token of all copies in one direction; None if a pool's size is unknown."""
        if self.lost("pool_bytes_per_token", "companion_bytes", "companion_slots"):
            return None
        slots = self.companion_slots or {}
        sizes = dict(self.pool_bytes_per_token or {})
        for pool, size in (self.companion_bytes or {}).items():
            sizes[pool] = quotient(size, slots.get(pool)) or math.nan
        return kv_bytes_per_token(copied, tokens, by_pool or {}, sizes)

    @property
    def encoded(self) -> bool:
        """Whether HiQCache's pool is in the engine."""
        return self.pool is not None and self.pool["codec"] != NO_CODEC

    @property
    def any_bytes_per_token(self) -> float | None:
        """Configured if known, else as backups measure it."""
        return self.known("bytes_per_token", self.backup_bytes_per_token)


KNOWN_LINES = lines_of(name for figure in Figures.declared() for name in figure.names)


def read_figures(text: str) -> Figures:
    """What an engine's `/metrics` says."""
    return Figures.of(Samples(text, KNOWN_LINES))
