"""Which room each file of src/core and src/engine goes to. A file that no line names stops the script."""
import re

# Of src/core: stem without _test, _fuzz, _bench, and without the ending .h or .cc.
CORE = {
    "base": "ascii bytes error hash http_status ids sign time trace_context utf8 visible",
    "json": "value json order event_stream",
    "expr": r"expr expr_\w+ template",
    "schema": r"schema schema_\w+ closed_schema answer_json text_format question",
    "log": "event event_table seal open sealed_form chain words redacted outcome sighting request_cut",
}
ENGINE = {
    "plan": r"plan plan_cache plan_changes plan_loop plan_policies plan_read price decimal budget model_calls",
    "inspect": "view trace trace_record drift effects verify ledger_proof replay_proof head transcript "
               "failure_place",
    "engine/state": "state status apply applier checkpoint left view_values",
    "engine/heart": "absorb beside decide decider evaluate features judge recorded_value recovery take apply_nodes "
                    "apply_calls apply_side apply_value decide_calls decide_end decide_nodes decide_probe decide_value "
                    "decide_version take_signals take_version "
                    # tests of more than one feature, and what tests share
                    "again bounds ending erase external_key given_job golden human_wait log model_call our_job outcome "
                    "pause plan_walk policy probe property random_plan redacted result_schema stored_job tool_step version "
                    "wait worn",
    "engine/approvals": "apply_approvals decide_approvals approval",
    "engine/budget": "apply_budget decide_budget take_budget budget_job budget_policy",
    "engine/confirm": "apply_confirm decide_confirm take_confirm confirm",
    "engine/fork": "apply_fork fork",
    "engine/loop": "apply_loop decide_loop loop loop_fork loop_job loop_life repair",
    "engine/planner": "apply_planner planner",
    "engine/questions": "apply_questions decide_questions questions question",
    "engine/replan": "apply_replan take_plan replan",
    "engine/undo": "decide_undo undo",
}
FEATURES = ["approvals", "budget", "confirm", "fork", "loop", "planner", "questions", "replan", "undo"]


def stem(name):
    return re.sub(r"(_test|_fuzz|_bench)?\.(cc|h)$", "", name)


def room_of(path):
    """The room of `core/x.cc` or `engine/x.h`; None = no line names it."""
    folder, name = path.split("/", 1)
    for room, words in {"core": CORE, "engine": ENGINE}[folder].items():
        if any(re.fullmatch(word, stem(name)) for word in words.split()):
            return room
    return None
