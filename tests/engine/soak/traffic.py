"""Mixed traffic from a few clients: conversations, documents that come back, prompts that never
do, and clients that hang up in mid-stream."""

from __future__ import annotations

import json
import random
import threading
import time
import urllib.request
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

from hiqcache.lab.serving.client import Client
from hiqcache.lab.workload.documents import Document, load_documents

KINDS = {"document": 4, "conversation": 4, "unique": 2, "hang_up": 2}
"""What a request is, and how often beside the others."""

DOCUMENTS = 12
CONVERSATIONS = 6
TURNS = 4
NEW_TOKENS = 8
TIMEOUT = 600


def hang_up(client: Client, prompt: str) -> None:
    """Ask for a long answer, and close the connection at its first token."""
    sampling = {"temperature": 0, "max_new_tokens": 256, "ignore_eos": True}
    body = {"text": prompt, "sampling_params": sampling, "stream": True}
    request = urllib.request.Request(
        f"{client.url}/generate",
        data=json.dumps(body).encode(),
        headers={"content-type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=TIMEOUT) as response:
        line = response.readline()
    assert line.startswith(b"data:"), line


class Traffic:
    """Clients that ask until a moment; what they asked and got is counted."""

    def __init__(self, client: Client, seed: int) -> None:
        self._client = client
        self._random = random.Random(seed)
        self._documents = load_documents()[:DOCUMENTS]
        self._conversations: dict[int, tuple[str, int]] = {}
        self._lock = threading.Lock()
        self._numbered = 0
        self.requests: Counter[str] = Counter()
        self.tokens: Counter[str] = Counter()

    def run(self, seconds: float, clients: int, pause: float) -> None:
        """Keep `clients` busy for `seconds`, with a mean of `pause` seconds between requests."""
        deadline = time.monotonic() + seconds
        with ThreadPoolExecutor(clients) as pool:
            for job in [pool.submit(self._keep_asking, deadline, pause) for _ in range(clients)]:
                job.result()

    def _keep_asking(self, deadline: float, pause: float) -> None:
        while time.monotonic() < deadline:
            with self._lock:
                kind = self._random.choices([*KINDS], [*KINDS.values()])[0]
                wait = self._random.uniform(0, 2 * pause)
            getattr(self, f"_{kind}")()
            with self._lock:
                self.requests[kind] += 1
            time.sleep(wait)

    def _ask(self, prompt: str) -> str:
        answer = self._client.ask(prompt, NEW_TOKENS)
        with self._lock:
            self.tokens["prompt"] += answer.prompt_tokens
            self.tokens["device"] += answer.device_tokens
            self.tokens["host"] += answer.host_tokens
        return answer.text

    def _excerpt(self, document: Document) -> str:
        return document.text[: len(document.text) // 4]

    def _document(self) -> None:
        with self._lock:
            document = self._random.choice(self._documents)
            question = self._random.choice(document.questions)
        self._ask(f"{self._excerpt(document)}\n\nQuestion: {question}\nAnswer:")

    def _conversation(self) -> None:
        """The next turn of one of the conversations; after the last, it starts anew."""
        with self._lock:
            which = self._random.randrange(CONVERSATIONS)
            document = self._documents[which]
            start = f"Conversation {which}.\n{self._excerpt(document)}"
            history, turn = self._conversations.get(which, (start, 0))
            prompt = f"{history}\nQuestion: {self._random.choice(document.questions)}\nAnswer:"
        text = self._ask(prompt)
        with self._lock:
            self._conversations[which] = (prompt + text, turn + 1)
            if turn + 1 == TURNS:
                del self._conversations[which]

    def _unique(self) -> None:
        with self._lock:
            self._numbered += 1
            words = self._random.sample(self._documents[0].text.split(), 150)
            prompt = f"{self._numbered} {' '.join(words)}"
        self._ask(prompt)

    def _hang_up(self) -> None:
        with self._lock:
            document = self._random.choice(self._documents)
        hang_up(self._client, self._excerpt(document))
