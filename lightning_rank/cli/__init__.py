"""The command ``lightning-rank``; a file of this folder per group of subcommands, loaded when one of them is asked for."""

from __future__ import annotations

import os
import sys
from difflib import get_close_matches

TRAINING = ("fit", "validate", "test", "predict")
COMMANDS = (*TRAINING, "evaluate", "compare", "report", "explain", "signals", "experiment", "gate", "data")


def main(args: list[str] | None = None) -> int:
    """Entry point of the command ``lightning-rank``; returns the exit status.

    ``gate`` ends with the exit code of its decision. Bad input is one line on stderr and status 1; with the environment variable
    ``LIGHTNING_RANK_TRACEBACK`` set, a traceback.
    """
    given = sys.argv[1:] if args is None else args
    try:
        if given and given[0] in ("evaluate", "compare"):
            # Without Lightning, which takes longer to load than a large run to judge.
            from lightning_rank.cli import offline

            offline.run(given)
        elif given and given[0] == "report":
            from lightning_rank.cli import report

            report.run(given[1:])
        elif given and given[0] == "explain":
            from lightning_rank.cli import explain

            explain.run(given)
        elif given and given[0] in ("signals", "experiment", "gate"):
            from lightning_rank.cli import online

            return online.run(given)
        elif given and given[0] == "data":
            from lightning_rank.cli import data

            data.run(given)
        elif given and given[0].isidentifier() and given[0] not in TRAINING:
            near = get_close_matches(given[0], COMMANDS, n=1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            known = f"There is {', '.join(COMMANDS)}; each has a --help."
            print(f"lightning-rank: error: there is no command {given[0]!r}.{hint} {known}", file=sys.stderr)
            return 2
        else:
            from lightning_rank.cli import training

            training.run(args)
    except (ValueError, OSError, ModuleNotFoundError) as error:
        if os.environ.get("LIGHTNING_RANK_TRACEBACK"):
            raise
        print(f"lightning-rank: error: {error}", file=sys.stderr)
        return 1
    return 0
