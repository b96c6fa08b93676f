#!/usr/bin/env python3
"""heart_hand.py TREE: what apply.py cannot do by tokens, after heart.tsv: patterns over code, never in string literals or comments.
Paths are those after heart.tsv."""
import re, sys, pathlib, fnmatch, subprocess
root = pathlib.Path(sys.argv[1])
files = [f for f in subprocess.run(["git","ls-files","-c","-o","--exclude-standard","src","bench"],cwd=root,capture_output=True,text=True).stdout.split("\n") if re.search(r"\.(h|cc)$",f) and (root/f).exists()]
MASK = re.compile(r'R"(?P<d>[^(\s]*)\((?:.|\n)*?\)(?P=d)"|"(?:[^"\\\n]|\\.)*"|//[^\n]*|/\*(?:.|\n)*?\*/')
D = "src/engine/*/decide*"; A = "src/engine/*/appl*"; E = "src/engine/*"
def call(old, new, cls): # unqualified calls, this->, declarations and definitions of a member function
    return (rf"(?<![\w.>:]){old}(?=\()|(?<=this->){old}(?=\()|(?<={cls}::){old}(?=\()", new)
RULES = []
for old, new in dict(step="decide_step", call="decide_call", ready="decide_ready", loop="decide_loop", pause="drain_for_pause", questioned="handle_questions", retry="schedule_retry",
    park="open_resolve_wait", declare="declare_try", probe="start_probe", undo="decide_undo", rest="become_idle", end="end_job", complete="complete_job", look="request_missing_checks",
    confirm="confirm_changes", confirmed="record_checks", confirmation_checked="emit_check", known="existing_step", within="cap_at_deadline", counts="counts_against_budget",
    deny="deny_if_forbidden", full="is_full", over="exceeded_limits").items():
    RULES.append((D, *call(old, new, "Decider")))
RULES.append((D, r"(?<![\w.>:])raise(?=\()|(?<=Decider::)raise(?=\()", "escalate"))
RULES.append((A, *call("asked", "await_answers", "Applier")))
RULES += [
 (E, r"\bin_time(?=\(const State)", "check_not_expired"), ("src/runtime/*", r"(?<=engine::)in_time(?=\()", "check_not_expired"),
 ("src/plan/* src/engine/* src/inspect/* src/sim/check_budget.cc src/api/lacking.cc src/cli/*", r"(?<=\.)most(?=\()|(?<=Limits::)most(?=\()|(?<=->)most(?=\(limit\))|(?<=& )most(?=\(Limit)", "max_of"),
 ("src/plan/budget* src/engine/* src/inspect/view.cc src/sim/check_budget.cc", r"(?<![\w.>:])part(?=\((?:use|copy|Usage|const Usage|to|from|more|less|spent|reserved|state|budget|s_|job|over|used|limits|sum|_))", "amount_of"),
 ("src/plan/* src/engine/budget/decide_budget.cc src/engine/budget/request_budget.cc src/engine/heart/decide.cc src/api/acts.cc src/api/jobs.cc src/agents/model_check.cc src/agents/settings_check.cc", r"(?<![\w.>])stored(?=\()", "to_json"),
 ("src/plan/* src/engine/* src/inspect/* src/sim/* src/api/lacking.cc", r"(?<=budget\.)over(?=\()|(?<=Budget::)over(?=\()|(?<=next\.)over(?=\()|(?<=budget_\.)over(?=\()", "exceeded_by"),
 ("src/plan/budget.h", r"(?<=ExceededLimit> )over(?=\()", "exceeded_by"),
 ("src/plan/plan.h", r"(?<=bool )calls(?=\(\) const)", "is_single_call"),
 ("src/engine/* src/runtime/rollback.cc src/inspect/*", r"(?<=node\.)calls(?=\(\))|(?<=node_of\(\*step\)\.)calls(?=\(\))|(?<=node_of\(step\)\.)calls(?=\(\))", "is_single_call"),
 ("src/expr/*", r"(?<![\w>:])made(?=\()|(?<=eval\.)made(?=\()", "check_limits"),
 ("src/json/order.* src/expr/expr_eval.cc src/schema/schema_walk.cc", r"(?<=ordering> )order(?=\()|(?<== )order(?=\()|(?<=\? )order(?=\()", "compare_values"),
 ("src/engine/loop/loop.cc", r"(?<=progress\.)said\b", "message_count"),
 ("src/runtime/*", r"(?<=\.)(?:chance|random)(?= = world_\.)", "jitter_seed"),
 ("src/engine/heart/apply_calls.cc src/inspect/view.cc", r"(?<=\bloop\.)said\b", "message_count"),
 ("src/runtime/*", r"(?<=engine::)catch_up(?=\()", "import_stored_effects"),
 ("src/sim/check_budget.cc", r"(?<![\w.>:])part(?=\()", "amount_of"),
 ("src/base/error.h", r"(?<=Error&& )in(?=\()", "with_context"), ("src/*", r"(?<=\)\.)in(?=\()", "with_context"),
 ("src/engine/*_test.* src/inspect/*_test.cc src/engine/*_fuzz.*", r"(?<=\.)kept(?=\()|(?<=& )kept(?=\()|(?<=return )kept(?=\()", "store_effect"),
 ("src/engine/*_test.* src/inspect/*_test.cc", r"(?<=\.)go(?=\(\))|(?<=& )go(?=\(\) \{)|(?<=return )go(?=\(\))", "run_until_idle"),
 ("src/engine/*_test.* src/inspect/*_test.cc", r"(?<=\.)said\b", "reply"), ("src/engine/heart/job_fixture_test.h", r"\bsaid\b", "reply"),
]
n = {}
for f in files:
    p = root / f; t = p.read_text(); rules = [(re.compile(r), w) for g, r, w in RULES if any(fnmatch.fnmatch(f, x) for x in g.split())]
    if not rules: continue
    out, at = [], 0
    def code(s):
        for r, w in rules:
            s, k = r.subn(w, s); n[w] = n.get(w, 0) + k
        return s
    for m in MASK.finditer(t):
        out += [t[at:m.start()], m[0]]; at = m.end()
    out.append(t[at:])
    # code pieces alternate with masked ones; look-behind needs only the piece itself
    for i in range(0, len(out), 2): out[i] = code(out[i])
    new = "".join(out)
    if new != t: p.write_text(new)
if "-v" in sys.argv: print(n)
