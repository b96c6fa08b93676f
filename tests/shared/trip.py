"""An agent whose last step fails until its file is fixed; its tools write one line per call into files."""
import re
import shlex

from shared.home import expect

BROKEN = """\
aetheris: 1
tools:
  pay:
    command: ["sh", "-c", "echo paid >> paid; echo '{\\"receipt\\": 7}'"]
    output: json
    effect: at_most_once
  print:
    command: ["sh", "-c", "echo printed >> printed; cat"]
    output: json
    effect: idempotent
agents:
  trip:
    plan:
      - { id: charge, tool: pay, args: { amount: 5 } }
      - { id: ticket, tool: print, needs: [charge], args: { receipt: "${ .steps.charge.reciept | floor }" } }
    output: "${ .steps.ticket.receipt }"
"""


FIXED = BROKEN.replace("reciept", "receipt")


def lines_of(h, name):
    path = h.path / name
    return path.read_text(encoding="utf-8").splitlines() if path.exists() else []


def printed_command(stderr):
    """The retry command that a failure printed on stderr, as words after `aetheris`."""
    words = shlex.split(re.search(r"aetheris retry .*", stderr)[0])
    assert words[0] == "aetheris", words
    return words[1:]


def run_broken(h):
    (h.path / "trip.yaml").write_text(BROKEN, encoding="utf-8")
    result = expect(h.run("run", "trip.yaml", "--job-id", "x1"), 1)
    assert "expression_failed" in result.err, result
    return result


def fix(h):
    (h.path / "trip.yaml").write_text(FIXED, encoding="utf-8")
