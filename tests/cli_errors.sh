#!/usr/bin/env bash
# Every error code that a user can receive has a page in docs/errors, and every page belongs to an existing code or to a
# reason for which a job is parked.
set -euo pipefail
root=${AETHERIS_ROOT:-$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)}
cd "$root"

codes=$(sed -n '/#define AE_ERROR_CODES/,/^$/p' src/base/error.h | grep -o 'X([a-z_]*)' | sed 's/X(\(.*\))/\1/' | sort -u)
# Codes between the runtime and a store: the runtime retries or handles them otherwise, and never reports them.
inside="held inbox_pending not_held sequence_conflict"
# Reasons of parked jobs that are not error codes.
reasons="routine_failed routine_stalled"

bad=0
for code in $codes; do
  case " $inside " in *" $code "*) continue ;; esac
  page=docs/errors/$code.md
  [ -f "$page" ] || { echo "# no page: $page"; bad=1; continue; }
  grep -q "^# $code$" "$page" && grep -q 'What happened' "$page" && grep -q 'What to do' "$page" ||
    { echo "# $page: requires a title, what happened and what to do"; bad=1; }
  grep -q "($code.md)" docs/errors/README.md || { echo "# docs/errors/README.md does not name $code"; bad=1; }
done
if [ $bad = 0 ]; then echo "ok errors/every code has a page"; else echo "not ok errors/every code has a page"; fi

unknown=0
for page in docs/errors/*.md; do
  name=$(basename "$page" .md)
  case $name in README | tool-errors) continue ;; esac
  case " $reasons " in *" $name "*) grep -q "\`$name\`" src/log/events.def && continue ;; esac
  grep -qx "$name" <<<"$codes" || { echo "# $page belongs to no code"; unknown=1; }
done
if [ $unknown = 0 ]; then echo "ok errors/every page belongs to a code or a reason"; else echo "not ok errors/every page belongs to a code or a reason"; fi
[ $bad = 0 ] && [ $unknown = 0 ]
