"""The command line of a campaign: `python -m tests.chaos --minutes 10 --seed 1 --report campaign.md`."""

from __future__ import annotations

import argparse
import logging
import signal
import sys
from pathlib import Path

from tests.chaos import campaign, hosts


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0, help="how long faults happen [10]")
    parser.add_argument("--seed", type=int, default=1, help="of the plan of faults and batches [1]")
    parser.add_argument("--gap", type=float, default=campaign.GAP_SECONDS, help="seconds between faults, in the mean")
    parser.add_argument("--keep", action="store_true", help="keep the hosts' logs if something was wrong")
    parser.add_argument("--report", type=Path, help="a file for the report; else standard output")
    options = parser.parse_args()
    if reason := hosts.missing():
        print(f"skipped: {reason}", file=sys.stderr)
        return 0
    logging.basicConfig(format="%(asctime)s %(message)s")
    logging.getLogger("tests.chaos").setLevel(logging.INFO)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # the hosts are removed in either case
    result = campaign.run(options.minutes, options.seed, gap=options.gap, keep=options.keep)
    text = result.markdown()
    if options.report:
        options.report.write_text(text)
    print(text)
    return 1 if result.problems else 0


if __name__ == "__main__":
    sys.exit(main())
