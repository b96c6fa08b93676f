#!/usr/bin/env bash
# The published hash chains verify with the Python verifier, which detects each modification.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
vectors=testdata/vectors/chain.json
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
failed=0

# chain_1.json has the schemas before job_created 3 and tool_invocation_started 2.
python3 scripts/verify_vectors.py "$vectors" testdata/vectors/chain_1.json || failed=1

# Prints `not ok` if the altered log verifies. $1: what is altered; $2: Python code that alters `log`.
altered() {
  python3 - "$vectors" "$work/altered.json" "$2" <<'PYTHON'
import json, sys
source, target, change = sys.argv[1:]
vectors = json.load(open(source, encoding="utf-8"))
log = vectors["logs"][1]
exec(change)
json.dump({"logs": [log]}, open(target, "w", encoding="utf-8"))
PYTHON
  if python3 scripts/verify_vectors.py "$work/altered.json" >"$work/output"; then
    echo "not ok chain vectors: an altered $1 is detected"
    failed=1
  else
    echo "ok chain vectors: an altered $1 is detected"
  fi
}
altered "commitment beside a kept value" 'log["events"][4]["payload"]["payload"]["$redacted"] = "0" * 64'
altered payload 'log["events"][1]["payload"]["node_id"] = "m"'
altered commitment 'log["events"][0]["payload"]["result"]["$redacted"] = "0" * 64'
altered value 'log["events"][2]["payload"]["result"]["secret"] = "plugh"'
altered salt 'log["events"][2]["salts"]["result"] = "00" * 16'
altered time 'log["events"][0]["created_at"] = "2023-11-14T22:13:20.123457Z"'
altered attempt 'del log["events"][0]["attempt_id"]'
altered order 'log["events"].reverse()'
altered start 'log["events"].pop(0)'
altered end 'log["events"].pop()'

# The same log as lines of envelopes.
python3 - "$vectors" "$work/events.ndjson" <<'PYTHON'
import json, sys
log = json.load(open(sys.argv[1], encoding="utf-8"))["logs"][0]
with open(sys.argv[2], "w", encoding="utf-8") as lines:
    lines.writelines(json.dumps(event) + "\n" for event in log["events"])
PYTHON
if python3 scripts/verify_vectors.py --events "$work/events.ndjson" >"$work/output"; then
  echo "ok chain vectors: one envelope per line verifies"
else
  cat "$work/output" >&2
  echo "not ok chain vectors: one envelope per line verifies"
  failed=1
fi
exit $failed
