"""The `art` command. One file per command beside this one; a command's module is imported when it is used.

A command module has a function `command` with typer's annotations, whose docstring is its help and ends with two
examples; or `group`, a Typer with commands of its own. `CONTEXT`, where it has one, are click's context settings.
`JSON` names the type of what `--json` prints, as `module:name` (`_schemas`); in a group by command. Modules whose
name begins with "_" are what several commands share.
"""

from __future__ import annotations

import difflib
import importlib
import json
import os
import pkgutil
import re
import select
import sys
from collections.abc import Sequence
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

from art.cli._help import Command
from art.errors import ArtError, InfraError

EXIT_ERROR = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130
EXIT_NO_READER = 141
"""As of a program that SIGPIPE ended."""
USAGE_ERROR: type[Exception] = typer.BadParameter.__bases__[0]
"""What typer raises for a wrong command line; it has no public name of its own."""
SECTIONS: dict[str, tuple[str, ...]] = {
    "See what happened": ("ui", "ls", "show", "tail", "explain", "compare", "sql"),
    "Run and train": ("init", "run", "serve", "rollout", "rollouts", "eval", "demo"),
    "Keep": ("checkpoint", "export", "backup", "restore", "data"),
    "Set up": ("config", "key", "audit", "doctor", "schema"),
}
"""How `art --help` orders the commands."""
EPILOG = """Every command takes --json: one document on stdout (`art schema COMMAND`), an error as JSON on stderr.

Counts may have units (8k, 1.5M), spans of time too (30s, 5m, 12h, 7d).

Exit status: 0 done, 1 an error, 2 a wrong command line, 3 (of art run also 4) a finding that the command's help names,
130 after Ctrl-C, 141 when nobody reads the output any more.

art --install-completion completes commands, flags and names of models in your shell."""


class LazyCommands(TyperGroup):
    """The modules of `art.cli` as commands."""

    def list_commands(self, ctx: Any) -> list[str]:
        import art.cli

        names = (module.name for module in pkgutil.iter_modules(art.cli.__path__))
        return sorted(name for name in names if name != "main" and not name.startswith("_"))

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in self.list_commands(ctx):
            return None
        module = importlib.import_module(f"art.cli.{cmd_name}")
        if (group := getattr(module, "group", None)) is not None:
            _plain(group)
            found = typer.main.get_group(group)
            found.name = cmd_name
            return found
        single = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
        context = getattr(module, "CONTEXT", None)
        single.command(cmd_name, cls=Command, context_settings=context)(module.command)
        return typer.main.get_command(single)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        known = self.list_commands(ctx)
        if not ctx.resilient_parsing and args[0] not in known:
            from art.cli._usage import WrongUsage

            near = difflib.get_close_matches(args[0], known, n=1)
            hint = f"did you mean `art {near[0]}`?" if near else "`art --help` lists them"
            raise WrongUsage(f"there is no command {args[0]!r}", hint=hint)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        names = self.list_commands(ctx)
        placed = {name for section in SECTIONS.values() for name in section}
        sections = {**SECTIONS, "More": tuple(name for name in names if name not in placed)}
        width = formatter.width - 6 - max(map(len, names))
        for title, section in sections.items():
            found = [(name, self.get_command(ctx, name)) for name in section if name in names]
            if rows := [(name, command.get_short_help_str(width)) for name, command in found]:
                with formatter.section(title):
                    formatter.write_dl(rows)

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            if not _reader_is_gone():
                raise
            # What is left in the buffer goes nowhere; Python would complain about it at the end.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(EXIT_NO_READER) from None


def _plain(group: typer.Typer) -> None:
    """Give a group's commands the help of all others; [server] in it is no markup."""
    group.rich_markup_mode = None
    for command in group.registered_commands:
        command.cls = Command
    for inner in group.registered_groups:
        if inner.typer_instance is not None:
            _plain(inner.typer_instance)


app = typer.Typer(
    cls=LazyCommands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,  # a traceback with locals would show keys
    rich_markup_mode=None,
    help="Make an LLM agent better at its own task, from its own runs.",
    epilog=EPILOG,
)


def _version(value: bool) -> None:
    if value:
        from art.version import package_version

        typer.echo(f"art {package_version()}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Make an LLM agent better at its own task, from its own runs."""


def report(error: ArtError, *, as_json: bool = False) -> None:
    """An error as the command line shows it, on stderr."""
    if as_json:
        typer.echo(json.dumps({"error": error.to_dict()}), err=True)
        return
    from art.utils.visible import clean

    for name, said in (("error", error.message), ("cause", error.cause), ("hint", error.hint)):
        if said or name == "error":
            typer.echo(f"{name}: {clean(said, lines=True)}", err=True)


def main() -> NoReturn:
    """Entry point; ends the process with the status that `art --help` documents."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """One command line; its exit status."""
    try:
        status = app(list(arguments), prog_name="art", standalone_mode=False)
    except ArtError as error:
        from art.cli._usage import WrongUsage

        report(error, as_json=_wants_json(arguments))
        return EXIT_USAGE if isinstance(error, WrongUsage) else EXIT_ERROR
    except typer.Abort:
        refused = ArtError("not confirmed, so nothing was changed", hint="--yes answers the question")
        report(refused, as_json=_wants_json(arguments))
        return EXIT_ERROR
    except USAGE_ERROR as error:
        if type(error).__name__ == "NoArgsIsHelpError":  # its message is the help
            typer.echo(str(error), err=True)
            return EXIT_USAGE
        report(_usage(error), as_json=_wants_json(arguments))
        return EXIT_USAGE
    except OSError as error:
        if error.filename is None:  # no file that somebody named
            raise
        failed = InfraError(f"{error.filename} cannot be used", cause=error.strerror or str(error))
        report(failed, as_json=_wants_json(arguments))
        return EXIT_ERROR
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    return status if isinstance(status, int) else 0


def _wants_json(arguments: Sequence[str]) -> bool:
    """Whether `--json` was given to us, and not behind `--` to a program."""
    ours = arguments[: arguments.index("--")] if "--" in arguments else arguments
    return "--json" in ours


def _usage(error: Any) -> ArtError:
    """typer's word about a wrong command line in ours."""
    from art.cli._usage import WrongUsage

    context = error.ctx
    near = getattr(error, "possibilities", None)
    message = error.message if near else error.format_message()
    near = near or _near_choices(message)
    hints = [f"did you mean {' or '.join(near[:2])}?"] if near else []
    if context is not None:
        hints.append(f"`{context.command_path} --help` tells what it takes")
    return WrongUsage(message.replace("Value error, ", "").rstrip("."), hint="; ".join(hints))


def _near_choices(message: str) -> list[str]:
    """Of the values that an option or argument takes, the one that was probably meant. Only the message has them."""
    found = re.search(r"'([^']*)' is not one of (.*)", message)
    return difflib.get_close_matches(found[1], re.findall(r"'([^']*)'", found[2]), n=1) if found else []


def _reader_is_gone() -> bool:
    """True when stdout is a pipe that nobody reads any more."""
    poll = select.poll()
    poll.register(sys.stdout.fileno(), 0)
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))


if __name__ == "__main__":
    main()
