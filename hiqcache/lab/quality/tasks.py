"""Tasks with a right answer, written into a text: needle, key-value register, recall.

Each is worded as a sentence to complete, which a base model does as well as an instructed one.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

DEPTHS = (0.1, 0.3, 0.5, 0.7, 0.9)
REGISTER_LINES = 5
KINDS = ("text", "needle", "text", "key-value", "recall")
"""The kinds in turn: two in five prompts are plain text."""

THINGS = (
    *("lighthouse", "greenhouse", "observatory", "windmill", "harbour", "archive", "bakery"),
    *("orchard", "foundry", "ferry", "museum", "quarry", "theatre", "vineyard", "workshop"),
)
COLOURS = (
    *("amber", "azure", "crimson", "emerald", "golden", "indigo", "ivory", "olive", "purple"),
    *("scarlet", "silver", "turquoise", "violet", "yellow"),
)
FACTS = (
    ("dog is called", "What is my dog called?", "names"),
    ("home is in the town of", "Where is my home?", "towns"),
    ("sister works as a", "What is my sister's work?", "trades"),
    ("favourite fruit is the", "What is my favourite fruit?", "fruits"),
)
"""What a user says behind "My" and the assistant repeats behind "Your", and what it names."""

VALUES = {
    "names": ("Biscuit", "Comet", "Domino", "Pepper", "Rocket", "Shadow", "Ziggy", "Maple"),
    "towns": ("Ashford", "Brighton", "Dover", "Lancaster", "Oxford", "Preston", "Salisbury"),
    "trades": ("baker", "carpenter", "dentist", "farmer", "gardener", "painter", "tailor"),
    "fruits": ("apricot", "banana", "cherry", "lemon", "mango", "orange", "pear", "plum"),
}


@dataclass(frozen=True)
class Task:
    """What is put into the lines of a text, and how it is asked for."""

    insert: tuple[tuple[float, str], ...]
    question: str
    answer: str | None
    depth: float | None


def make_task(kind: str, turn: int, rng: random.Random) -> Task:
    """The task of a kind; `turn` counts the prompts of that kind and sets the depth."""
    depth = DEPTHS[turn % len(DEPTHS)]
    if kind == "needle":
        place, code = f"{rng.choice(COLOURS)} {rng.choice(THINGS)}", _code(rng)
        line = f"The access code of the {place} is {code}. "
        return Task(((depth, line),), f"\n\nThe access code of the {place} is", code, depth)
    if kind == "key-value":
        keys = rng.sample(THINGS, REGISTER_LINES)
        codes = {key: _code(rng) for key in keys}
        asked = rng.choice(keys)
        register = "\n".join(["\nRegister", *(f"{key}: {code}" for key, code in codes.items()), ""])
        return Task(((depth, register),), f"\n\nRegister\n{asked}:", codes[asked], depth)
    if kind == "recall":
        facts = rng.sample(FACTS, 3)
        values = [rng.choice(VALUES[kind_of_value]) for _, _, kind_of_value in facts]
        places = sorted((depth, *rng.sample([d for d in DEPTHS if d != depth], 2)))
        turns = tuple(
            (
                place,
                f"\nUser: My {fact} {value}.\nAssistant: Your {fact} {value}. I will remember.\n",
            )
            for place, (fact, _, _), value in zip(places, facts, values, strict=True)
        )
        asked_at = places.index(depth)
        fact, question, _ = facts[asked_at]
        ask = f"\n\nUser: {question}\nAssistant: Your {fact}"
        return Task(turns, ask, values[asked_at], depth)
    return Task((), "", None, None)


def _code(rng: random.Random) -> str:
    return str(rng.randrange(1000, 10000))
