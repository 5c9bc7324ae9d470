"""One step, as runner.py starts it: `python -m rust_ort.studies.gpu <step> <device> <record> <until>`."""

from __future__ import annotations

import os
import signal
import sys
import traceback
from pathlib import Path
from types import FrameType

from rust_ort.studies.gpu.record import Record
from rust_ort.studies.gpu.steps import STEPS


def main(name: str, device: str, path: str, until: str) -> int:
    """What went wrong is in the rows; the exit code tells only that the step came to its end."""
    signal.signal(signal.SIGTERM, say_where)
    step = next(step for step in STEPS if step.name == name)
    record = Record(Path(path), float(until))
    step.run(record, device)
    record.end()
    return 0


def say_where(number: int, frame: FrameType | None) -> None:
    """Ends the process, whatever it is at; its log says where. What waits in C is not reached, and is killed."""
    print("ended by its limit here:", file=sys.stderr)
    traceback.print_stack(frame)
    sys.stderr.flush()
    os._exit(128 + number)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
