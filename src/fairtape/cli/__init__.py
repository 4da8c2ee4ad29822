"""`fairtape …`: what a person types, what it starts, and how mistakes are told. One module per command.

`COMMANDS` is the list of commands and `main` the entry. A mistake of the user ends in one sentence and exit code 2;
a traceback is always a bug of ours.
"""

import errno
import os
import sys
from collections.abc import Sequence
from typing import Final

import click

from fairtape import __version__
from fairtape.cli.lazy import CommandEntry, LazyGroup
from fairtape.core.errors import UserError

COMMANDS: Final = {
    "demo": CommandEntry(
        "A ring", "fairtape.cli.demo", "demo", "Run a whole market on this machine and prove its order."
    ),
    "listen": CommandEntry(
        "A ring", "fairtape.cli.listen", "listen", "Print the one order of a deployment, or of a ring started here."
    ),
    "publish": CommandEntry(
        "A ring", "fairtape.cli.publish", "publish_command", "Publish a file of trades into a ring."
    ),
    "revise": CommandEntry(
        "A ring", "fairtape.cli.publish", "revise", "Cancel or correct a trade, halt a venue, open it again."
    ),
    "web": CommandEntry("A ring", "fairtape.cli.run", "web", "Serve the ticker of a site by WebSocket and HTTP."),
    "init": CommandEntry(
        "A deployment", "fairtape.cli.init", "init", "Make a deployment: its file and everybody's keys."
    ),
    "up": CommandEntry(
        "A deployment", "fairtape.cli.run", "up", "Run the sites and servers of a deployment on this machine."
    ),
    "node": CommandEntry("A deployment", "fairtape.cli.run", "node", "Run one node of a deployment."),
    "status": CommandEntry("A deployment", "fairtape.cli.status", "status", "Show how a deployment fares."),
    "operate": CommandEntry(
        "A deployment",
        "fairtape.cli.operate",
        "operate",
        "Retire and admit sites; change the plan; resume after a halt.",
    ),
    "edge": CommandEntry("A deployment", "fairtape.cli.run", "edge", "Serve what customers of a site missed."),
    "hear": CommandEntry("A deployment", "fairtape.cli.hear", "hear", "Hear the ticker as a customer does."),
    "gateway": CommandEntry(
        "A deployment", "fairtape.cli.run", "gateway", "Let traders enter orders into a deployment."
    ),
    "accounts": CommandEntry(
        "A deployment", "fairtape.cli.accounts", "accounts", "Make logins, and fund their accounts."
    ),
    "floor": CommandEntry(
        "A deployment", "fairtape.cli.floor", "floor", "Open markets, enter orders, look at the books."
    ),
    "drill": CommandEntry("A deployment", "fairtape.cli.operate", "drill", "Inject a fault and report what happened."),
    "check": CommandEntry(
        "Proof", "fairtape.cli.check", "check", "Run simulated worlds and check every guarantee in each."
    ),
    "audit": CommandEntry(
        "Proof", "fairtape.cli.simulate", "audit", "Measure fairness: which region wins simultaneous bids."
    ),
    "trace": CommandEntry("Proof", "fairtape.cli.check", "trace", "Repeat one simulated world and show its trace."),
    "failover": CommandEntry(
        "Proof", "fairtape.cli.simulate", "failover", "Crash members and measure how soon the others go on."
    ),
    "scale": CommandEntry(
        "Proof", "fairtape.cli.simulate", "scale", "Grow loops to 10,000 sites and count the work of each site."
    ),
    "bench": CommandEntry(
        "Proof", "fairtape.cli.bench", "bench", "Measure fairtape here, beside what it is compared with."
    ),
    "journal": CommandEntry("The record", "fairtape.cli.journal", "journal", "Read and check a site's journal."),
    "pipeline": CommandEntry(
        "The record",
        "fairtape.cli.pipeline",
        "pipeline",
        "Work on the record with Spark: tables, proofs, reports, plans.",
    ),
    "doctor": CommandEntry(
        "Before a start", "fairtape.cli.doctor", "doctor", "Check this machine and say what to do about it."
    ),
    "plan": CommandEntry("Before a start", "fairtape.cli.plan", "plan", "Work out a deployment before it is built."),
}

EXIT_MISTAKE: Final = 2
EXIT_PIPE_CLOSED: Final = 1
EXIT_INTERRUPTED: Final = 130


@click.group(cls=LazyGroup, commands=COMMANDS, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, "-V", "--version", prog_name="fairtape", message="%(prog)s %(version)s")
def fairtape() -> None:
    """One market, one order, one moment.

    fairtape merges the messages of many venues into a single sequence and releases it at every site at the same
    instant. Every site keeps a journal that proves it afterwards.
    """


def run(arguments: Sequence[str], command: click.Command = fairtape) -> int:
    """The exit code of one call."""
    try:
        code = command.main(list(arguments), prog_name="fairtape", standalone_mode=False)
        if sys.stdout is not None:  # closed by whoever called
            sys.stdout.flush()
    except UserError as complaint:
        click.echo(f"fairtape: {complaint}", err=True)
        return EXIT_MISTAKE
    except click.ClickException as refusal:
        refusal.show()
        return refusal.exit_code
    except (click.Abort, KeyboardInterrupt):
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # The reader has gone, and the interpreter would flush into its absence once more on the way out.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_PIPE_CLOSED
    except OSError as trouble:
        if trouble.errno != errno.ENOSPC or trouble.filename is not None:
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        click.echo("fairtape: standard output takes no more (no space is left); send it to another place", err=True)
        return EXIT_PIPE_CLOSED
    return code if isinstance(code, int) else 0


def main() -> None:
    """The console script."""
    sys.exit(run(sys.argv[1:]))
