"""The documents that servers are asked about."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from hiqcache.lab.workload.documents import load_documents

DOCUMENTS = load_documents()
TEXTS = Path(__file__).parents[2] / "hiqcache" / "lab" / "workload" / "texts"


def test_there_are_enough_and_each_is_another() -> None:
    assert len(DOCUMENTS) >= 24
    assert len({document.title for document in DOCUMENTS}) == len(DOCUMENTS)
    assert len({document.text for document in DOCUMENTS}) == len(DOCUMENTS)


def test_no_two_share_a_prefix_worth_caching() -> None:
    # A shared beginning would be a hit between documents that a replay should not see.
    assert len({document.text[:12] for document in DOCUMENTS}) == len(DOCUMENTS)


def test_each_question_is_answered_by_its_document() -> None:
    for document in DOCUMENTS:
        assert 1 <= len(document.questions) <= 2
        assert len(document.answers) == len(document.questions)
        for question, answer in zip(document.questions, document.answers, strict=True):
            assert document.title in question
            assert answer in document.text
            assert question not in document.text


def test_no_markup_is_left_in_a_text() -> None:
    for document in DOCUMENTS:
        assert document.text.startswith(document.title + "\n\n")
        assert not {"---", "Q:", "A:", "++", "<", "\ufffd", "\t"} & set(document.text.split())


def test_the_order_is_that_of_the_files() -> None:
    names = sorted(path.name for path in TEXTS.glob("*.txt"))
    assert [document.title.lower().replace(" ", "_") + ".txt" for document in DOCUMENTS] == names
    assert load_documents() == DOCUMENTS


def test_the_texts_stay_small_and_state_their_licence() -> None:
    assert sum(path.stat().st_size for path in TEXTS.iterdir()) < 300_000
    assert "public domain" in (TEXTS / "README.md").read_text("utf-8")


def test_loading_needs_no_torch() -> None:
    program = (
        "import sys, hiqcache.lab.workload.documents as d; d.load_documents(); "
        "sys.exit(any(m in sys.modules for m in ('torch', 'sglang', 'numpy')))"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
