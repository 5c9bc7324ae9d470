"""One step, as runner.py starts it: `python -m rust_ort.studies.gpu <step> <device> <record> <seconds>`."""

from __future__ import annotations

import faulthandler
import sys
from pathlib import Path

from rust_ort.studies.gpu.record import Record
from rust_ort.studies.gpu.steps import STEPS

IMPORTS_S = 15.0


def main(name: str, device: str, path: str, seconds: str) -> int:
    """What went wrong is in the rows; the exit code tells only that the step came to its end."""
    # Before it is ended, its log says where it is; imports took some of the time.
    faulthandler.dump_traceback_later(max(1.0, float(seconds) - IMPORTS_S), exit=False)
    step = next(step for step in STEPS if step.name == name)
    step.run(Record(Path(path)), device)
    faulthandler.cancel_dump_traceback_later()
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
