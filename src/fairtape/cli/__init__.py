"""The command line: parses arguments, calls the packages below, prints results.

`COMMANDS` lists the commands; `main` is the entry point. A command's module imports heavy packages when the command
runs, so that help texts appear at once. A mistake of the user ends with one sentence and exit code 2; a traceback is
always a bug of fairtape.
"""

import errno
import os
import sys
from collections.abc import Sequence
from typing import Final

import click

from fairtape import __version__
from fairtape.cli.lazy import CommandEntry, LazyGroup
from fairtape.core.errors import UserError, remedy_for

COMMANDS: Final = {
    "demo": CommandEntry(
        "Market data", "fairtape.cli.demo", "demo", "Run a whole market on this machine and prove its order."
    ),
    "listen": CommandEntry(
        "Market data", "fairtape.cli.listen", "listen", "Print what a deployment releases; make one if there is none."
    ),
    "publish": CommandEntry(
        "Market data", "fairtape.cli.publish", "publish_command", "Publish a file of trades into a ring."
    ),
    "revise": CommandEntry(
        "Market data", "fairtape.cli.publish", "revise", "Cancel or correct a trade, halt a venue, open it again."
    ),
    "web": CommandEntry(
        "Market data", "fairtape.cli.processes", "web", "Serve the ticker of a site by WebSocket and HTTP."
    ),
    "init": CommandEntry(
        "A deployment", "fairtape.cli.init", "init", "Make a deployment: its file and the keys of its nodes."
    ),
    "up": CommandEntry(
        "A deployment", "fairtape.cli.processes", "up", "Run the sites and servers of a deployment on this machine."
    ),
    "node": CommandEntry("A deployment", "fairtape.cli.processes", "node", "Run one node of a deployment."),
    "status": CommandEntry("A deployment", "fairtape.cli.status", "status", "Show the state of a deployment."),
    "operate": CommandEntry(
        "A deployment",
        "fairtape.cli.operate",
        "operate",
        "Retire and admit sites; change the plan; resume after a halt or a lost store.",
    ),
    "edge": CommandEntry("A deployment", "fairtape.cli.processes", "edge", "Run the retransmit server of a site."),
    "hear": CommandEntry("A deployment", "fairtape.cli.hear", "hear", "Receive the multicast stripes as a customer."),
    "gateway": CommandEntry(
        "A deployment", "fairtape.cli.processes", "gateway", "Run order entry: FIX, OUCH and the Python client."
    ),
    "accounts": CommandEntry(
        "A deployment", "fairtape.cli.accounts", "accounts", "Make logins and fund their accounts."
    ),
    "floor": CommandEntry(
        "A deployment", "fairtape.cli.floor", "floor", "Open markets, enter orders, show books and trades."
    ),
    "drill": CommandEntry("A deployment", "fairtape.cli.operate", "drill", "Inject a fault and report what happened."),
    "check": CommandEntry(
        "Simulation and measurement",
        "fairtape.cli.check",
        "check",
        "Simulate rings with faults and check every guarantee.",
    ),
    "explore": CommandEntry(
        "Simulation and measurement",
        "fairtape.cli.explore",
        "explore",
        "Explore every order of faults in a small deployment.",
    ),
    "audit": CommandEntry(
        "Simulation and measurement",
        "fairtape.cli.simulate",
        "audit",
        "Measure promises: who wins simultaneous bids, and false reformations.",
    ),
    "trace": CommandEntry(
        "Simulation and measurement", "fairtape.cli.check", "trace", "Repeat one simulated world and show its trace."
    ),
    "failover": CommandEntry(
        "Simulation and measurement",
        "fairtape.cli.simulate",
        "failover",
        "Crash members and measure how soon the others continue.",
    ),
    "scale": CommandEntry(
        "Simulation and measurement",
        "fairtape.cli.simulate",
        "scale",
        "Grow loops to 10,000 sites and count the work of each site.",
    ),
    "bench": CommandEntry(
        "Simulation and measurement",
        "fairtape.cli.bench",
        "bench",
        "Measure fairtape on this machine, next to a baseline.",
    ),
    "journal": CommandEntry(
        "Journals and tables", "fairtape.cli.journal", "journal", "Read and check a site's journal."
    ),
    "pipeline": CommandEntry(
        "Journals and tables",
        "fairtape.cli.pipeline",
        "pipeline",
        "Process journals with Spark: tables, proofs, reports, plans.",
    ),
    "doctor": CommandEntry("Planning", "fairtape.cli.doctor", "doctor", "Check this machine and say what to improve."),
    "plan": CommandEntry(
        "Planning", "fairtape.cli.plan", "plan", "Plan loops and stripes before a deployment is built."
    ),
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
    """Run one command; returns its exit code."""
    try:
        code = command.main(list(arguments), prog_name="fairtape", standalone_mode=False)
        if sys.stdout is not None:  # closed by the caller
            sys.stdout.flush()
    except UserError as error:
        click.echo(f"fairtape: {error}", err=True)
        return EXIT_MISTAKE
    except ModuleNotFoundError as missing:
        if (remedy := remedy_for(missing)) is None:
            raise
        click.echo(f"fairtape: {remedy}", err=True)
        return EXIT_MISTAKE
    except click.ClickException as refusal:
        refusal.show()
        return refusal.exit_code
    except (click.Abort, KeyboardInterrupt):
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # The reader has closed the pipe. Without this, the interpreter would fail to flush once more at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_PIPE_CLOSED
    except OSError as trouble:
        if trouble.errno != errno.ENOSPC or trouble.filename is not None:
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        click.echo("fairtape: standard output cannot be written (no space is left); redirect it elsewhere", err=True)
        return EXIT_PIPE_CLOSED
    return code if isinstance(code, int) else 0


def main() -> None:
    """The console script."""
    sys.exit(run(sys.argv[1:]))
