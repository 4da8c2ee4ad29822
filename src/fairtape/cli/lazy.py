"""A group of commands that imports a command only when it is called, so that `fairtape --help` appears at once."""

from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from importlib import import_module
from itertools import groupby
from typing import Any

import click


@dataclass(frozen=True, slots=True)
class CommandEntry:
    """Where a command is defined, and its line in the overview."""

    section: str
    module: str
    attribute: str
    help: str

    def load(self) -> click.Command:
        command = getattr(import_module(self.module), self.attribute)
        assert isinstance(command, click.Command), f"{self.module}:{self.attribute} is not a command"
        return command


class LazyGroup(click.Group):
    """Takes its commands from a table. The overview keeps the table's order; entries of one section are adjacent."""

    def __init__(self, *, commands: Mapping[str, CommandEntry], **options: Any) -> None:
        super().__init__(**options)
        self._entries = dict(commands)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*self._entries, *super().list_commands(ctx)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        entry = self._entries.get(cmd_name)
        return entry.load() if entry else super().get_command(ctx, cmd_name)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command that the arguments begin with; a mistyped name gets a suggestion."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            near = get_close_matches(args[0], self.list_commands(ctx))
            if not near:
                raise
            raise click.UsageError(f"{error.message} Did you mean {' or '.join(near)}?", ctx) from None

    def format_commands(self, _ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The overview comes from the table alone, without importing commands."""
        width = max(map(len, self._entries), default=0)
        for section, entries in groupby(self._entries.items(), key=lambda item: item[1].section):
            with formatter.section(section):
                formatter.write_dl([(name.ljust(width), entry.help) for name, entry in entries])
