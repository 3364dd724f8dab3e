"""The process that runs programs: a line of JSON in, a line of JSON out. A crash or a hang ends it alone.

It is started by `check.py`, with the device's options in its environment.
"""

from __future__ import annotations

import json
import sys

from tests.order.program import Program


def main() -> None:
    answers = sys.stdout
    sys.stdout = sys.stderr  # whatever a library prints is not an answer
    from tests.order.execute import Device

    device = Device(shares="library" not in sys.argv)
    print(json.dumps({"ready": True}), file=answers, flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        difference = device.run(Program.from_json(request["program"]), request["jitter"], request["racy"])
        answer = {"step": difference.step, "text": difference.text} if difference else {}
        print(json.dumps(answer), file=answers, flush=True)
    device.close()


if __name__ == "__main__":
    main()
