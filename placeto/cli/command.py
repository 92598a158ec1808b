"""The ``placeto`` command: finds the subcommand, parses its arguments, reports user errors in one line."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import re
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from errno import ENOENT
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from textwrap import indent
from types import ModuleType
from typing import Any, NoReturn

from placeto.cli.shared.common import note
from placeto.errors import PlacetoError, UsageError
from placeto.plumbing.signals import Interruption, sigterm_interrupts
from placeto.plumbing.terminal import printable, table

_OF_TORCH = {"torch": "torch", "torch_geometric": "torch-geometric"}  # module -> package; heuristics need none of them
COMMANDS = (
    "train", "plan", "fits", "place", "evaluate", "simulate", "report", "compare",
    "export", "capture", "profile", "run", "tune", "cluster", "list",
)  # fmt: skip
"""The commands: the file of each says in its first line what it does."""
_ANNOTATED = "typing.Annotated["
_EXAMPLE = """\
  placeto place net.py:make --cluster 4xv100          (make returns a module, a list of inputs, a loss)
  placeto train --family cifar10 --cluster 4xv100 --out runs/cifar10 --minutes 4
  placeto place cifar10:test:3 --cluster 4xv100 --checkpoint runs/cifar10 -o placement.json
  placeto simulate cifar10:test:3 --cluster 4xv100 --placement placement.json --trace trace.json"""


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and exit: 0 done, 2 user error (one line on stderr), 130 by Ctrl-C, 143 by SIGTERM."""
    _open_streams()
    with user_errors(), log_noted(), warnings_noted():
        _run(list(sys.argv[1:] if arguments is None else arguments))
    sys.exit(0)


def _open_streams() -> None:
    """Open the streams that a shell has closed (`>&-`), for which Python has None; what is written there is dropped."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115 # until the process ends


@contextlib.contextmanager
def user_errors() -> Iterator[None]:
    """Within it, a user's mistake exits with 2 and one line on stderr, Ctrl-C with 130 and SIGTERM with 143."""
    try:
        with sigterm_interrupts():
            yield
            sys.stdout.flush()  # here, where a BrokenPipeError is handled
    except Interruption as stop:
        print(printable(str(stop)), file=sys.stderr)
        sys.exit(128 + stop.number)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(130)
    except BrokenPipeError:  # the reader of our output, such as `head`, went away
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except OSError as error:
        where = f"{error.filename}: " if error.filename is not None else ""
        gone = error.errno == ENOENT and not where  # os.getcwd names no file
        _fail(
            "the current folder is not there any more: change to another"
            if gone
            else f"{where}{error.strerror or error}"
        )
    except ModuleNotFoundError as error:
        if error.name not in _OF_TORCH:
            raise
        _fail(f"this needs PyTorch, and {error.name} is not installed: pip install {_OF_TORCH[error.name]}")
    except PlacetoError as error:
        _fail(str(error))


@contextlib.contextmanager
def log_noted() -> Iterator[None]:
    """Within it, what Placeto logs is printed as notes, such as that kernels are compiled, which can take a minute."""
    logger, handler = logging.getLogger("placeto"), logging.Handler()
    handler.emit = lambda record: note(record.getMessage())  # type: ignore[method-assign]
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


@contextlib.contextmanager
def warnings_noted() -> Iterator[None]:
    """Within it, Placeto's own warnings are printed as notes in one line, without the line of code."""
    with warnings.catch_warnings():
        # torch-geometric 2.8 scripts a class on import, and torch 2.14 shows a warning of that
        warnings.filterwarnings("ignore", r"`torch\.jit\.script` is deprecated", FutureWarning)
        show = warnings.showwarning

        def tell(message: Warning | str, category: type[Warning], *where: Any) -> None:
            if category.__module__.startswith("placeto."):
                note(str(message))
            else:
                show(message, category, *where)

        warnings.showwarning = tell  # type: ignore[assignment] # `tell` passes on what it is given
        yield


def _run(arguments: list[str]) -> None:
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(_help())
        return
    name = arguments[0]
    if name == "--version":
        print(f"placeto {_version()}")
        return
    if name not in COMMANDS:
        kind = "option" if name.startswith("-") else "command"
        raise UsageError(f"unknown {kind} {name!r}; commands: {', '.join(COMMANDS)}")
    module = import_module(f"placeto.cli.{name}")
    run: Callable[[object], None] = module.run
    run(parse(module, arguments[1:]))


def parse(command: ModuleType, arguments: Sequence[str]) -> Any:
    """Return a command's `Arguments` from the command line, filled by tyro; ``--help`` prints and exits.

    If the command has a function `defaults(arguments)`, options that aren't given are taken from what it returns.

    Raises:
        UsageError: the arguments are invalid; the message is tyro's report in one sentence, or names an option.
    """
    import tyro

    from placeto.cli.shared.options import check_options
    from placeto.cli.shared.paragraphs import in_paragraphs, paragraphs

    program = f"placeto {command.__name__.rpartition('.')[2]}"
    known = {"default": command.defaults(arguments)} if hasattr(command, "defaults") else {}
    report = io.StringIO()
    try:
        with contextlib.redirect_stderr(report), in_paragraphs():
            about = paragraphs(command.Arguments.__doc__)
            parsed = tyro.cli(command.Arguments, prog=program, args=list(arguments), description=about, **known)
    except SystemExit as stop:
        if stop.code in (0, None):
            raise
        raise UsageError(f"{_one_line(report.getvalue())} (see `{program} --help`)") from None
    check_options(parsed)
    return parsed


_OTHER_NAMES = {
    **dict.fromkeys(("bfloat16", "bf16-mixed"), " Did you mean bf16?"),
    **dict.fromkeys(("float16", "half", "16-mixed"), " Did you mean fp16?"),
    **dict.fromkeys(("float32", "float", "full"), " Did you mean fp32?"),
    **dict.fromkeys(
        ("adam8bit", "adamw8bit", "adamw_8bit", "paged_adamw_8bit", "adamw_bnb_8bit"),
        " States of 8 bits aren't modelled: adam is an upper bound.",
    ),
    **dict.fromkeys(
        ("--tensor-parallel", "--tensor-parallel-size", "--tensor_parallel_size", "--tp"),
        " Tensor parallelism has no option: `placeto plan` tries groups of 2, 4 and 8 boards, `placeto fits` none.",
    ),
    "--memory": " Each device has its own: write a cluster file with `placeto cluster 4xv100 -o mine.json`, change the "
    "memory there, and give the file to --cluster.",
}
"""Names that others give to a choice or an option -> what is said about them."""


def _one_line(report: str) -> str:
    """Return the sentence inside tyro's framed report: the lines above its rule, without the frame."""
    lines = [re.sub(r"\x1b\[[0-9;]*m", "", line).strip("│╭╮╰╯|+ ") for line in report.splitlines()]
    body = [line for line in lines[1:] if line]  # on a terminal of ASCII rules are dashes
    while body and set(body[0]) <= set("─-"):
        body = body[1:]
    rules = [i for i, line in enumerate(body) if set(line) <= set("─-")]
    sentence = _plain_types(" ".join(body[: rules[0]] if rules else body))
    sentence = re.sub(r"Expected one of \(([^)]*)\)(?: (?=\.))?", _choices, sentence)
    if given := re.match(r"(?:invalid choice '|Unrecognized options: )([\w-]*)", sentence):
        about = _OTHER_NAMES.get(given[1], "")
        return f"{sentence.rstrip('.')}.{about}" if about else sentence
    return sentence or "the arguments can't be read"


def _plain_types(sentence: str) -> str:
    """Return a sentence with ``int`` in place of ``typing.Annotated[int, ...]``, for which tyro has no shorter name."""
    while (at := sentence.find(_ANNOTATED)) >= 0:
        begin = end = at + len(_ANNOTATED)
        depth = 1
        while depth and end < len(sentence):
            depth += (sentence[end] in "[(") - (sentence[end] in ")]")
            end += 1
        sentence = sentence[:at] + sentence[begin:end].partition(",")[0] + sentence[end:]
    return sentence


def _choices(listed: re.Match[str]) -> str:
    """Return the choices, which tyro lists as a set, in order; without None, which means that nothing is given."""
    names = re.findall(r"'([^']*)'", listed[1])
    return f"Expected one of {', '.join(sorted({*names} - {'None'}))}"


def _help() -> str:
    commands = indent(table((name, _does(name)) for name in COMMANDS), "  ")
    usage = "usage: placeto COMMAND [OPTIONS]     (placeto COMMAND --help says more)"
    return f"{usage}\n\nPlaces neural-network computation graphs on devices.\n\n{commands}\n\nexample:\n{_EXAMPLE}"


def _does(command: str) -> str:
    """Return what a command does, from the first line of its file, which isn't imported for that."""
    with Path(__file__).with_name(f"{command}.py").open(encoding="utf-8") as file:
        sentence = file.readline().strip('"\n').partition(": ")[2]
    return sentence[0].upper() + sentence[1:]


def _version() -> str:
    try:
        return version("placeto")
    except PackageNotFoundError:
        return "(not installed)"


def _fail(message: str) -> NoReturn:
    print(f"error: {printable(' '.join(message.split()))}", file=sys.stderr)
    sys.exit(2)


if __name__ == "__main__":
    main()
