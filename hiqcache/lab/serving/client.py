"""Ask a running SGLang server and read its counters: for the laboratory and the engine tests."""

from __future__ import annotations

import http.client
import json
import time
import urllib.error
import urllib.request
from base64 import b64decode
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from hiqcache.errors import HiQCacheError

TIMEOUT = 600
FLUSH_SECONDS = 60


class EngineError(HiQCacheError):
    """The server did not answer, or answered with an error."""


@dataclass(frozen=True)
class Answer:
    """One greedy answer and where its prompt's KV came from.

    Parameters
    ----------
    text, token_ids
        What was generated.
    logprobs
        Log probability of each generated token.
    prompt_tokens, device_tokens, host_tokens
        Tokens of the prompt: in all, found in L1, and restored from L2.
    ttft, seconds
        From sending to the first token and to the last.
    storage_tokens
        Tokens of the prompt that L3 brought to L2 for this request.
    """

    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    prompt_tokens: int
    device_tokens: int
    host_tokens: int
    ttft: float
    seconds: float
    storage_tokens: int = 0


@dataclass(frozen=True)
class TextReading:
    """What a model expected at each position of a text that it was given, not asked to write.

    Parameters
    ----------
    logprobs
        Log probability of each token of the text.
    top_ids, top_logprobs
        Little-endian int32 and float32, `[positions, top]`: the most likely tokens at each
        position, most likely first.
    top
        Tokens a position.
    prompt_tokens, device_tokens, host_tokens
        As in `Answer`.
    """

    logprobs: tuple[float, ...]
    top_ids: bytes
    top_logprobs: bytes
    top: int
    prompt_tokens: int
    device_tokens: int
    host_tokens: int


class Client:
    """SGLang's native HTTP interface at a base address such as `http://127.0.0.1:30000`."""

    def __init__(self, url: str) -> None:
        self.url = url

    def healthy(self) -> bool:
        """Whether `/health` answers 200, which SGLang does once it has generated a token."""
        try:
            with urllib.request.urlopen(f"{self.url}/health", timeout=30) as response:
                return bool(response.status == 200)
        except (OSError, http.client.HTTPException):
            return False

    def ask(
        self, prompt: str | Sequence[int], max_new_tokens: int = 32, *, ignore_eos: bool = False
    ) -> Answer:
        """Send a prompt, text or token ids, and stream a greedy answer.

        With `ignore_eos` the answer has exactly `max_new_tokens` tokens.

        Raises
        ------
        EngineError
            The server refused, stopped, or sent no token.
        """
        key = "text" if isinstance(prompt, str) else "input_ids"
        request = {
            key: prompt if isinstance(prompt, str) else list(prompt),
            "sampling_params": {
                "temperature": 0,
                "max_new_tokens": max_new_tokens,
                "ignore_eos": ignore_eos,
            },
            "return_logprob": True,
            "stream": True,
        }
        begin = time.monotonic()
        ttft = 0.0
        last: dict[str, Any] | None = None
        for event in self._events("/generate", request):
            ttft = ttft or time.monotonic() - begin
            last = event
        seconds = time.monotonic() - begin
        if last is None:
            raise EngineError(f"{self.url} closed the stream before the first token")
        meta = last["meta_info"]
        cached = meta.get("cached_tokens_details") or {}
        logprobs = meta["output_token_logprobs"]
        return Answer(
            # A server without a tokenizer answers with token ids alone.
            text=last.get("text", ""),
            token_ids=tuple(int(token) for _, token, *_ in logprobs),
            logprobs=tuple(float(logprob) for logprob, *_ in logprobs),
            prompt_tokens=meta["prompt_tokens"],
            device_tokens=cached.get("device", 0),
            host_tokens=cached.get("host", 0),
            ttft=ttft,
            seconds=seconds,
            storage_tokens=cached.get("storage", 0),
        )

    def read(self, prefix: Sequence[int], text: Sequence[int], top: int) -> TextReading:
        """Read `text` behind `prefix`, teacher-forced.

        SGLang looks up at most the prefix less its last token in the cache, since that token's
        computation gives the first expectation; the text is always computed.

        Raises
        ------
        EngineError
            The server refused, or answered for another number of positions.
        """
        request = {
            "input_ids": [*prefix, *text],
            "sampling_params": {"temperature": 0, "max_new_tokens": 1},
            "return_logprob": True,
            "logprob_start_len": len(prefix) - 1,
            "top_logprobs_num": top,
            "return_flat_raw_top_logprobs": True,
            "return_flat_raw_top_logprobs_b64": True,
        }
        with self._open("/generate", request) as response:
            meta = json.load(response)["meta_info"]
        logprobs = [logprob for logprob, *_ in meta["input_token_logprobs"][1:]]
        positions, given = meta["input_top_logprobs_shape"]
        if not len(logprobs) == positions == len(text) or given != top:
            raise EngineError(
                f"{self.url}/generate answered for {positions} positions of {given} tokens, "
                f"expected {len(text)} of {top}"
            )
        cached = meta.get("cached_tokens_details") or {}
        return TextReading(
            logprobs=tuple(logprobs),
            top_ids=b64decode(meta["input_top_logprobs_idx_flat_b64"]),
            top_logprobs=b64decode(meta["input_top_logprobs_val_flat_b64"]),
            top=top,
            prompt_tokens=meta["prompt_tokens"],
            device_tokens=cached.get("device", 0),
            host_tokens=cached.get("host", 0),
        )

    def _events(self, path: str, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
        with self._open(path, body) as response:
            for line in response:
                data = line.decode().removeprefix("data:").strip()
                if not data:
                    continue
                if data == "[DONE]":
                    return
                event = json.loads(data)
                if "error" in event:
                    raise EngineError(f"{self.url}{path} answered: {event['error']}")
                yield event

    def metrics_text(self) -> str:
        """`/metrics` as the server gives it."""
        with self._open("/metrics") as response:
            text: str = response.read().decode()
            return text

    def metrics(self) -> dict[str, float]:
        """Every sample of `/metrics`, summed over its labels but for `cache_source`.

        A counter split by tier appears as `name{cache_source="host"}`.
        """
        from prometheus_client.parser import text_string_to_metric_families

        totals: dict[str, float] = {}
        for family in text_string_to_metric_families(self.metrics_text()):
            for sample in family.samples:
                name = sample.name
                if source := sample.labels.get("cache_source"):
                    name = f'{name}{{cache_source="{source}"}}'
                totals[name] = totals.get(name, 0.0) + sample.value
        return totals

    def server_info(self) -> dict[str, Any]:
        """What the server says about itself."""
        with self._open("/server_info") as response:
            info: dict[str, Any] = json.load(response)
            return info

    def flush(self) -> None:
        """Empty the cache, L1 and L2; waits for copies that are under way."""
        with self._open(f"/flush_cache?timeout={FLUSH_SECONDS}", {}) as response:
            response.read()

    def _open(self, path: str, body: dict[str, Any] | None = None) -> Any:
        request = urllib.request.Request(
            f"{self.url}{path}",
            data=None if body is None else json.dumps(body).encode(),
            headers={"content-type": "application/json"},
        )
        try:
            return urllib.request.urlopen(request, timeout=TIMEOUT)
        except urllib.error.HTTPError as error:
            detail = error.read().decode(errors="replace")[:400]
            raise EngineError(f"{self.url}{path} answered {error.code}: {detail}") from error
        except OSError as error:
            raise EngineError(f"{self.url}{path} is not reachable: {error}") from error
