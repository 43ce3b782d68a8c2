"""Real documents with questions about them, as they ship with the package.

`texts/README.md` states where they come from and why they may be redistributed.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.resources import files

SEPARATOR = "\n---\n"


@dataclass(frozen=True)
class Document:
    """A text of 900 to 1,150 SmolLM2 tokens and what to ask about it.

    Parameters
    ----------
    title
        The first line of the text, unique among the documents: no two texts share a prefix.
    text
        The document, its title included.
    questions
        Short factual questions that the text answers.
    answers
        The words of the text that answer each question, in the same order.
    """

    title: str
    text: str
    questions: tuple[str, ...]
    answers: tuple[str, ...]


def load_documents() -> list[Document]:
    """Read all documents, ordered by file name: the same list on every machine."""
    folder = files("hiqcache.lab.workload") / "texts"
    entries = sorted(folder.iterdir(), key=lambda entry: entry.name)
    return [parse(entry.read_text("utf-8")) for entry in entries if entry.name.endswith(".txt")]


def parse(source: str) -> Document:
    """Split a file into the text and the lines `Q: ...` and `A: ...` below `---`."""
    text, _, tail = source.rpartition(SEPARATOR)
    text = text.strip()
    lines = tail.strip().splitlines()
    return Document(
        title=text.partition("\n")[0],
        text=text,
        questions=tuple(line[3:] for line in lines if line.startswith("Q: ")),
        answers=tuple(line[3:] for line in lines if line.startswith("A: ")),
    )
