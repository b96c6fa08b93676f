// The rules about child jobs: what the log of a parent records, compared with the logs of its
// children. (observer.cc checks that a job ends, and undoes its steps, after its children.)
#include <set>
#include <string>
#include <utility>
#include <variant>

#include "json/json.h"
#include "log/field_names.h"
#include "log/records.h"
#include "sim/checker.h"

namespace ae::sim {
namespace {

std::optional<JobParent> parent_of(const std::vector<Event>& log) {
  const auto* created = log.empty() ? nullptr : as<JobCreated>(log.front());
  if (!created || created->parent.is_null()) return std::nullopt;
  return created->parent.read_leniently();
}

const Event* end_of_log(const std::vector<Event>& log) {
  const auto end = std::ranges::find_if(log, is_end, &Event::type);
  return end == log.end() ? nullptr : &*end;
}

// The log of the child of this step; nullptr: it was not created.
const std::vector<Event>* child_of(const JobEvidence& e, const StepId& step) {
  const auto log = e.logs.find(child_job_id(e.job, step));
  return log == e.logs.end() ? nullptr : &log->second;
}

// The end of a child, as its parent records it: the code of its failure, or its result.
struct RecordedEnd {
  std::string status, code;
  Value result;
};
RecordedEnd recorded_end_of(const Event& end) {
  if (const auto* completed = as<JobCompleted>(end)) {
    return {.status = "completed", .code = {}, .result = completed->result.value};
  }
  if (const auto* failed = as<JobFailed>(end)) {
    return {.status = "failed", .code = failed->code, .result = {}};
  }
  return {.status = "cancelled", .code = "cancelled", .result = {}};
}

void a_call_creates_one_child(const JobEvidence& e, Checker& checker) {
  std::map<std::string, bool, std::less<>> calls;  // by step: is its child detached?
  for (const auto& [invocation, call] : calls_of(e.events)) {
    const ToolKind& kind = *tool_kind(call.tool);
    if (!kind.child) continue;
    checker.fail_if(!calls.emplace(call.step, kind.detached).second, "{}: a second call",
                    call.step);
    for (const auto& [number, t] : call.tries) {
      const bool awaits = t.finished && t.definite && t.error.empty() && !kind.detached;
      const bool created = awaits || (t.success && kind.detached);
      checker.fail_if(created && child_of(e, StepId(call.step)) == nullptr,
                      "{} try {}: its child does not exist", call.tool, number);
    }
  }
  for (const auto& [job, log] : e.logs) {
    const auto parent = parent_of(log);
    if (!parent || e.job.text.view() != parent->job_id) continue;
    const auto call = calls.find(parent->command_id.text);
    checker.fail_if(call == calls.end(), "no call has created the child {}", job.text);
    checker.fail_if(call != calls.end() && call->second != parent->detached.value_or(false),
                    "the child {} is detached, or should be", job.text);
    checker.fail_if(job != child_job_id(e.job, parent->command_id), "{} is not the id of a child",
                    job.text);
    const auto own = parent_of(e.events);
    checker.fail_if(parent->tree_depth != (own ? own->tree_depth : 0) + 1,
                    "the child {} has the depth {}", job.text, parent->tree_depth);
    checker.mark(parent->detached == true ? "child.detached" : "child.awaited");
    if (parent->tree_depth > 1) checker.mark("child.of_child");
  }
}

// The end of a child is in the wait of its call, and in the outcome of the call.
void recorded_ends_are_true(const JobEvidence& e, Checker& checker) {
  std::set<std::string, std::less<>> ended;  // steps whose child has ended, as the log shows
  std::map<std::string, std::string, std::less<>> tools;
  std::map<std::string, Value, std::less<>> early;  // ends that came before their wait, by step
  for (const Event& event : e.events) {
    if (const auto* message = as<AgentMessage>(event);
        message && is_of_child(or_empty(message->wait_type))) {
      for (const auto& [step, tool] : tools) {
        if (child_job_id(e.job, StepId(step)).text.view() == message->message_id) {
          early[step] = message->payload.value;
          checker.mark("child.ended_early");
        }
      }
    }
    if (const auto* call = as<ToolInvocationStarted>(event)) {
      tools[call->step_id.text] = call->tool_name;
    }
    const std::string step(step_of(event));
    const auto* wait = as<WaitCompleted>(event);
    const bool is_wait = wait && is_of_child(wait->wait_type);
    const auto* finish = as<ToolInvocationFinished>(event);
    const bool is_outcome =
        finish && !finish->late && ended.contains(step) && tool_kind(tools[step])->awaits_child();
    if (!is_wait && !is_outcome) continue;
    const auto* child = child_of(e, StepId(step));
    const Event* const end = child ? end_of_log(*child) : nullptr;
    if (!end) {
      checker.fail("event {}: its child has not ended", event.seq);
      continue;
    }
    const RecordedEnd actual = recorded_end_of(*end);
    if (is_wait) {
      ended.insert(step);
      const Value& payload = early.contains(step) ? early[step] : wait->payload.value;
      checker.fail_if(payload.text("status") != actual.status, "event {}: its child has {}",
                      event.seq, actual.status);
      checker.mark("child." + actual.status);
      continue;
    }
    if (finish->error && finish->error->code == "not_sent") continue;
    const bool same = finish->outcome == "success"
                          ? actual.status == "completed" && finish->result.value == actual.result
                          : finish->error && finish->error->code == actual.code;
    checker.fail_if(!same && finish->outcome != to_text(OutcomeKind::unknown),
                    "event {}: the outcome {} is not the end of its child, {} {}", event.seq,
                    canonical(payload_json(event.body)), actual.status, canonical(actual.result));
  }
}

// (job, key) of each call with an unknown outcome that the terminal event lists, of the job and of
// its children.
std::set<std::pair<std::string, std::string>> in_doubt_by(const JobId& job, const Event& end,
                                                          bool own) {
  std::set<std::pair<std::string, std::string>> all;
  std::visit(
      [&](const auto& ended) {
        if constexpr (requires {
                        ended.children_in_doubt;
                        ended.in_doubt;
                      }) {
          for (const ChildInDoubt& one : ended.children_in_doubt.read_leniently()) {
            for (const auto& key : one.idempotency_keys) all.emplace(one.job_id, std::string(key));
          }
          const Value keys = own ? ended.in_doubt.json() : Value();
          if (!keys.is_array()) return;
          for (const Value& key : keys.items()) all.emplace(job.text.string(), key.as_string());
        }
      },
      end.body);
  return all;
}

void unknown_calls_of_children_are_listed(const JobEvidence& e, Checker& checker) {
  const Event* const end = end_of(e);
  if (!end) return;
  std::set<std::pair<std::string, std::string>> expected;
  for (const auto& [job, log] : e.logs) {
    const auto parent = parent_of(log);
    if (!parent || e.job.text.view() != parent->job_id || parent->detached == true) continue;
    const Event* const ended = end_of_log(log);
    if (ended) expected.merge(in_doubt_by(job, *ended, true));
  }
  const auto listed = in_doubt_by(e.job, *end, false);
  checker.fail_if(listed != expected, "it lists {} unknown calls of children, they have {}",
                  listed.size(), expected.size());
  if (!expected.empty()) checker.mark("child.in_doubt");
}

constexpr Rule kChildRules[] = {
    {"J1 a call creates one child, and each child belongs to one call", a_call_creates_one_child},
    {"J3 the recorded end of a child is its end", recorded_ends_are_true},
    {"J4 a terminal event names the unknown calls of children",
     unknown_calls_of_children_are_listed},
};

}  // namespace

std::span<const Rule> child_rules() { return kChildRules; }

}  // namespace ae::sim
