"""The `hiqcache` program: parses, dispatches, and turns an error into one line.

Each subcommand is a module of `hiqcache.commands`, or of `hiqcache.lab.commands` where it
measures, with `add_parser(subparsers)`, which sets `run` to a function of the parsed arguments
that returns the exit code. Those modules import torch, SGLang and the like inside `run` only, so
that `hiqcache --help` is instant and works from a bare install.
"""

from __future__ import annotations

import argparse
import difflib
import importlib
import os
import sys
from collections.abc import Sequence
from itertools import takewhile
from typing import Any, NoReturn

from hiqcache import __version__, signals
from hiqcache.errors import HiQCacheError, UsageError

PRODUCT, LAB = "hiqcache.commands", "hiqcache.lab.commands"
GROUPS = {
    "Try": {"demo": LAB, "capacity": PRODUCT, "simulate": PRODUCT},
    "Serve": {"serve": PRODUCT, "doctor": PRODUCT, "sidecar": PRODUCT, "pod": PRODUCT},
    "Measure": {"experiment": LAB, "report": LAB, "quality": LAB},
    "Develop": {"bench": LAB, "conformance": PRODUCT, "model": LAB},
}
"""Every command in its group, and the package that its module is in; loaded by name."""

COMMANDS = {name: package for group in GROUPS.values() for name, package in group.items()}

EXAMPLES = {
    "Try": ("hiqcache demo", "hiqcache capacity --geometry qwen3-8b --hicache-size 8"),
    "Serve": (
        "HIQCACHE_CODEC=int8 hiqcache serve --model-path Qwen/Qwen3-8B "
        "--enable-hierarchical-cache --hicache-size 8",
        "hiqcache sidecar --engine http://127.0.0.1:30000",
    ),
    "Measure": (
        "hiqcache experiment run b --model Qwen/Qwen3-8B",
        "hiqcache quality run --model Qwen/Qwen3-8B",
    ),
    "Develop": ("hiqcache bench codec", "hiqcache conformance generate --device cpu"),
}


class OneLineParser(argparse.ArgumentParser):
    """An `ArgumentParser` whose errors are one line on stderr and exit code 2.

    An option that does not exist is named before anything that is missing.
    """

    takes_arguments = False

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message} (see `{self.prog} --help`)")

    def take_sglangs_arguments(self) -> None:
        """Take what follows this command's own options as SGLang's; `--` between is optional."""
        self.takes_arguments = True
        self.add_argument(
            "arguments", nargs=argparse.REMAINDER, metavar="[--] ARGUMENTS", help="SGLang's"
        )

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        if not self.takes_arguments:
            self._name_what_does_not_exist(args or ())
            return super().parse_known_args(args, namespace)
        words = list(args)
        own = next((i for i, w in enumerate(words) if w not in self._option_string_actions), None)
        if own is not None and words[own] != "--":
            word = words[own]
            if meant := difflib.get_close_matches(word, self._option_string_actions, 1):
                self.error(f"unknown option {word}, did you mean {meant[0]}?")
            if not word.startswith("--"):
                self.error(f"expected an option of SGLang, such as --model-path, got {word!r}")
            words.insert(own, "--")
        found, left = super().parse_known_args(words, namespace)
        found.arguments = found.arguments[1:]
        return found, left

    def _name_what_does_not_exist(self, words: Sequence[str]) -> None:
        """argparse would speak of what is missing first."""
        known = self._option_string_actions
        if any(action.nargs == argparse.PARSER for action in self._actions):
            return
        for word in takewhile(lambda word: word != "--", words):
            option = word.partition("=")[0]
            # As argparse has it, a word with a space is a value: --server-arguments '--tp-size 2'.
            if (
                " " not in word
                and option.startswith("--")
                and not any(name.startswith(option) for name in known)
            ):
                meant = difflib.get_close_matches(option, known, 1)
                advice = f", did you mean {meant[0]}?" if meant else ""
                self.error(f"unknown option {option}{advice}")


class Overview(OneLineParser):
    """The whole program: its help lists commands by what they are for."""

    commands: Any

    def format_help(self) -> str:
        lines = [self.format_usage(), f"{self.description}", ""]
        helps = {each.dest: each.help for each in self.commands._choices_actions}
        for group, commands in GROUPS.items():
            lines.append(f"{group}:")
            lines += [f"  {name:<12} {helps[name]}" for name in commands]
            lines += [f"      {example}" for example in EXAMPLES[group]] + [""]
        lines.append("hiqcache COMMAND --help explains each. --version prints the version.\n")
        return "\n".join(lines)


def build_parser() -> Overview:
    parser = Overview(
        prog="hiqcache", description="An INT8 host tier for SGLang's hierarchical KV cache."
    )
    parser.add_argument("--version", action="version", version=f"hiqcache {__version__}")
    parser.commands = parser.add_subparsers(
        metavar="COMMAND", required=True, parser_class=OneLineParser
    )
    for name, package in COMMANDS.items():
        importlib.import_module(f"{package}.{name}").add_parser(parser.commands)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    try:
        with signals.raised():
            parser = build_parser()
            words = sys.argv[1:] if argv is None else argv
            if not words:
                parser.print_help()
                return 0
            args = parser.parse_args(words)
            code: int = args.run(args)
            sys.stdout.flush()
            return code
    except HiQCacheError as error:
        print(f"hiqcache: {' '.join(str(error).split())}", file=sys.stderr)
        return error.exit_code
    except BrokenPipeError:
        # The reader has what it wanted (`hiqcache capacity ... | head -1`).
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        print(f"hiqcache: {error}", file=sys.stderr)
        return 1
    except signals.Ended as ended:
        return ended.exit_code
    except KeyboardInterrupt:
        print("hiqcache: interrupted", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
