"""`python -m helpers.grading`: collects, grades, reports and exports a class's work. `--help` says how."""

from __future__ import annotations

import argparse
import importlib
import sys

from helpers.grading.course import GradingError, add_course_arguments

# Each module has HELP, whose first line stands in the list of commands, add_arguments and main.
_COMMANDS = {
    "collect": "lms.collecting",
    "run": "running",
    "report": "class_report.reporting",
    "export": "lms.exporting",
}
_DESCRIPTION = """\
Grade a class. The usual order, in the course folder:

  python -m helpers.grading collect DOWNLOAD     what students handed in -> submitted/
  python -m helpers.grading run                  grade what is new or changed
  python -m helpers.grading report               grading/report.html: how the class did
  python -m helpers.grading export --to canvas --roster gradebook.csv --feedback
                                                 grades and feedback for the learning platform

Each command can be stopped and run again; nothing is lost. `COMMAND --help` says more; GRADING.md is the whole guide.
"""


def command_line() -> argparse.ArgumentParser:
    """What can be typed. A parsed line has the function that does it in `run`."""
    parser = argparse.ArgumentParser(
        prog="python -m helpers.grading",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="Exit codes: 0 all well; 1 done, but something needs a person; 2 not done, the message says why.",
    )
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for name, module_name in _COMMANDS.items():
        module = importlib.import_module(f"helpers.grading.{module_name}")
        command = commands.add_parser(
            name,
            help=module.HELP.split("\n")[0],
            description=module.HELP,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        add_course_arguments(command)
        module.add_arguments(command)
        command.set_defaults(run=module.main)
    return parser


def main(arguments: list[str] | None = None) -> int:
    """Run one subcommand. Exit codes: 0 all well, 1 done but something needs a person, 2 nothing could be done."""
    chosen = command_line().parse_args(arguments)
    try:
        return chosen.run(chosen)
    except GradingError as error:
        print(error, file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
