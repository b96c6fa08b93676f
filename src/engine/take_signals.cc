// Acts that answer a wait, or will: signals, early ones too, approvals, messages. And pause and resume.
#include <algorithm>
#include <utility>

#include "core/hash.h"
#include "core/json.h"
#include "core/seal.h"
#include "engine/decide.h"
#include "engine/evaluate.h"
#include "engine/features.h"
#include "engine/judge.h"
#include "engine/recorded_value.h"
#include "engine/take.h"

namespace ae::engine {
namespace {

// What has been kept for a wait must be able to name one.
constexpr std::size_t kKeyMax = 256;

// The wait that the act names, by its key or by its id among the approvals. Fails with not_found.
Result<std::string> key_of(const State& state, const Act& act) {
  if (act.approval.empty()) return act.correlation_key;
  for (const auto& [key, wait] : state.waits) {
    if (state.approval_id(wait) == act.approval) return key;
  }
  for (const auto& [key, wait] : state.closed_waits) {
    if (wait.approval == act.approval) return key;
  }
  return fail(Code::not_found,
              "no open approval request has this id; `aetheris approvals` lists the open ones");
}

// The open wait that the act names.
auto wait_of(const State& state, const Act& act) {
  return std::ranges::find_if(state.waits, [&](const auto& open) {
    return act.approval.empty() ? open.first == act.correlation_key
                                : state.approval_id(open.second) == act.approval;
  });
}

// An answer as its wait keeps it: one that changes the arguments names what they become.
Value answer_of(const State& state, const Act& act) {
  if (!act.arguments) return act.payload;
  return act.payload.with("arguments_hash", state.hash_of(*act.arguments));
}

// It had its answer before. Who answers to arguments that somebody has changed meanwhile must look again.
Result<Value> duplicate(const State& state, const std::string& key, const ClosedWait& closed,
                        const Act& act) {
  const Value payload = answer_of(state, act);
  if (closed.outcome == "edited" &&
      payload.text("arguments_hash") != closed.payload.text("arguments_hash")) {
    return fail(Code::approval_edited,
                "this call was approved with changed arguments; `aetheris trace` shows who changed "
                "them and what was sent");
  }
  const bool same =
      is_question_wait_key(key) ? says_again(act, closed.payload) : closed.payload == payload;
  const bool delivered = closed.outcome == "signalled" || closed.outcome == "approved" ||
                         closed.outcome == "edited" || closed.outcome == "rejected";
  return Value::object({{"applied", delivered && same},
                        {"correlation_key", key},
                        {"delivered", delivered},
                        {"duplicate", true},
                        {"outcome", closed.outcome},
                        {"payload", closed.payload}});
}

// The key that a wait of the plan will open with; "" = nobody can tell yet.
std::string coming_key(const State& state, const Node& node, Work& work) {
  const Step& step = state.steps[node.index];
  if (!node.wait_key) return step.id.text;
  if (!node.wait_key->is_constant()) {
    const ExprRoots& read = node.wait_key->roots();
    const bool known = std::ranges::all_of(read.steps, [&](const std::string& id) {
      const auto of = state.plan->by_id.find(id);
      return of != state.plan->by_id.end() && state.steps[of->second].phase == StepPhase::done;
    });
    if (read.all_steps || !known) return {};
  }
  const auto named = wait_key_of(state, node, &work);
  return named ? state.key_of_wait(*named) : std::string();
}

// An early answer to a person's wait is one. Where the plan cannot tell yet which wait its key belongs to, it is kept, and
// listed as undelivered when it turns out to be none.
Status may_come_early(const State& state, const Act& act, const std::string& key) {
  if (!state.plan) return {};
  Status refused;
  Work work = 0;
  for (const Node& node : state.plan->nodes) {
    if (work >= DecideLimits{}.work_max) break;  // it is kept, unless a wait before refuses it
    const StepPhase phase = state.steps[node.index].phase;
    const bool to_come = phase == StepPhase::blocked || phase == StepPhase::ready;
    if (node.kind != NodeKind::wait || node.wait_type != WaitType::human || !to_come) continue;
    if (!act.wait_type.empty() && act.wait_type != to_text(node.wait_type)) continue;
    if (coming_key(state, node, work) != key) continue;
    const auto outcome = outcome_of_answer(node, act.payload);
    if (outcome) return {};
    refused = std::unexpected(outcome.error());
  }
  return refused;
}

// The signal that is kept for this key, when the wait would take it before this one; nullptr = none. One that names another
// type of wait, or decides nothing where this one decides, may be passed over by the wait.
const Kept* kept_for(const State& state, const Act& act, const std::string& key) {
  const auto decides = [](const Value& payload) {
    const std::string_view decision = payload.text("decision");
    return decision == "approve" || decision == "reject";
  };
  const auto early = state.early.find(key);
  if (early == state.early.end()) return nullptr;
  const auto same = std::ranges::find_if(early->second, [&](const Kept& kept) {
    return kept.wait_type == act.wait_type && !kept.erased &&
           decides(kept.payload) == decides(act.payload);
  });
  return same == early->second.end() ? nullptr : &*same;
}

// A signal that nobody waits for yet is kept for the wait that opens with its key (SPEC §10).
Result<Taken> keep_early(const State& state, const Act& act, const std::string& key) {
  if (is_own_key(key)) {
    return fail(Code::wait_mismatch,
                "keys of the form resolve/…, approval/… and input/…#n are reserved for the "
                "runtime: such requests cannot be answered early");
  }
  if (key.empty() || key.size() > kKeyMax) {
    return fail(Code::wait_mismatch, "a correlation key has 1 to 256 bytes");
  }
  if (state.ending) {
    return fail(Code::wait_mismatch, "the job is ending: no wait will open any more");
  }
  AE_TRY(may_come_early(state, act, key));
  const Value answer = Value::object({{"buffered", true}, {"correlation_key", key}});
  if (const Kept* kept = kept_for(state, act, key)) {
    const Value again = answer.with("duplicate", true).with("payload", kept->payload);
    return Taken{.events = {}, .answer = again.with("applied", kept->payload == act.payload)};
  }
  if (state.message_names.contains(message_name({}, key, act.id))) {
    return Taken{.events = {}, .answer = answer.with("duplicate", true)};
  }
  return Taken{.events = {kept_event(act)}, .answer = answer};
}

// What a person made of a call before saying yes to it; nullopt: it stays as it was asked for.
Result<std::optional<Value>> edited_arguments(const State& state, const Wait& wait, const Act& act,
                                              std::string_view outcome) {
  if (wait.approval && act.payload.find("arguments") != nullptr) {
    return fail(Code::input_invalid,
                "a signal changes no arguments: `aetheris approve ID --arguments JSON`, or "
                "\"arguments\" of POST /api/approvals/{id}");
  }
  if (!act.arguments) return std::nullopt;
  if (!wait.approval || outcome != "approved") {
    return fail(Code::input_invalid, "only a call that is approved can be given other arguments");
  }
  const Step& step = state.steps[wait.step];
  if (!act.arguments->is_object()) {
    return fail(Code::input_invalid,
                "\"arguments\" must be an object: all of them, as they are to "
                "be sent");
  }
  if (canonical_exceeds(*act.arguments, kValueMax)) {
    return fail(Code::payload_too_large, "the arguments are longer than 16 MiB as canonical JSON");
  }
  if (state.hash_of(*act.arguments) == step.approval->arguments_hash) {
    return std::nullopt;
  }
  if (step.call) {
    return fail(Code::input_invalid,
                "this call was sent before with the arguments that it has: approve or reject it");
  }
  const ToolPolicy& tool = state.tool_of(step);
  if (tool.args_schema) AE_TRY(tool.args_schema->check(*act.arguments));
  AE_TRY(takes(tool.records, *act.arguments));
  AE_ASSIGN(const Judgement said, judge(state, tool, *act.arguments));
  if (said.action == PolicyAction::deny) {
    return fail(Code::denied, "a policy denies the call with these arguments" +
                                  (said.reason.empty() ? "" : ": " + said.reason));
  }
  return act.arguments;
}

// Why a call is not made with this approval by the process that takes it in; "" = it is, as far as that process knows.
std::string not_used(const State& state, const Wait& wait, const Stamp& stamp,
                     std::string_view outcome) {
  if (!wait.approval || outcome == "rejected" || stamp.tool_versions == nullptr) return {};
  const Step& step = state.steps[wait.step];
  const std::string& offered = (*stamp.tool_versions)[state.tool_index(step)];
  const Approval& approval = *step.approval;
  if (offered.empty() || offered == approval.tool_version) return {};
  return "the tool \"" + approval.tool + "\" has changed since the request (" +
         approval.tool_version + " is now " + offered +
         "), and an approval is good for one version: the call is requested again";
}

// What follows a rejection of this step's call or wait, once a process runs the job.
std::string after_rejection(const State& state, const Step& step) {
  const Node& node = state.node_of(step);
  const std::string name = "node " + node.id;
  if (step.turn != kNoTurn && !node.loop->fail_on_reject) {
    return "the model of " + name + " gets the rejection as the result of its call";
  }
  if (step.item != kNoItem && node.collect_errors) {
    return "item " + std::to_string(step.item) + " of " + name + " fails and the job continues";
  }
  if (node.kind == NodeKind::wait && node.continue_on_reject) {
    return "the job continues after " + name;
  }
  if (node.continue_on_error) return name + " fails and the job continues";
  return "the job fails at " + name;
}

// A person answers whether a call may be made: the decision, and with it the end of the wait.
EventDraft approval_decision(const State& state, const Wait& wait, const Act& act,
                             const Stamp& stamp, std::string_view outcome) {
  const Step& step = state.steps[wait.step];
  const bool edited = outcome == "edited";
  std::vector<Member> answer{{"approval_id", step.approval->id},
                             {"arguments_hash", step.approval->arguments_hash},
                             {"command_id", step.id.text},
                             {"tool", step.approval->tool}};
  if (edited) {
    answer[1].second = state.hash_of(*act.arguments);
    answer.emplace_back("arguments", *act.arguments);
    answer.emplace_back("edited_from", step.approval->arguments_hash);
  }
  std::vector<Member> p{
      {"at", to_text(stamp.now)},
      {"decision_id",
       step_id(state.job, state.plan->decision, step.approval->id + "#answer", "decision").text},
      {"kind", "approval"},
      {"node_id", state.node_of(step).id},
      {"payload", Value::object(std::move(answer))},
      {"state", outcome},
      {"step_id", step.id.text}};
  if (!act.by.empty()) p.emplace_back("by", act.by);
  if (const std::string_view note = act.payload.text("note"); !note.empty()) {
    p.emplace_back("reason", note);
  }
  return {EventType::decision_recorded, Value::object(std::move(p))};
}

}  // namespace

bool is_own_key(std::string_view key) {
  return key.starts_with("resolve/") || key.starts_with("approval/") || is_question_wait_key(key);
}

std::string message_name(std::string_view channel, std::string_view key, std::string_view id) {
  std::string name(channel);
  name += '\0';
  name += key;
  name += '\0';
  name += id;
  return name;
}

EventDraft kept_event(const Act& act) {
  std::vector<Member> p{{"channel", act.channel}, {"message_id", act.id}, {"payload", act.payload}};
  if (act.kind == Act::Kind::signal) p.emplace_back("correlation_key", act.correlation_key);
  if (!act.by.empty()) p.emplace_back("by", act.by);
  if (!act.wait_type.empty()) p.emplace_back("wait_type", act.wait_type);
  if (!act.traceparent.empty()) p.emplace_back("traceparent", act.traceparent);
  return {EventType::agent_message, Value::object(std::move(p))};
}

Result<std::string_view> outcome_of_answer(const Node& node, const Value& payload) {
  const bool asks = node.kind != NodeKind::wait;  // a call that is to be approved
  if (!asks && node.wait_type != WaitType::human) return "signalled";
  const std::string_view decision = payload.text("decision");
  if (decision == "approve") return "approved";
  if (decision == "reject") return "rejected";
  if (!asks && node.wants_data) return "approved";
  return fail(Code::input_invalid,
              "an answer is {\"decision\": \"approve\"} or {\"decision\": \"reject\"}; `aetheris "
              "approve` and `aetheris reject` send it");
}

const Kept* fitting(const std::deque<Kept>& early, const Node& node) {
  for (const Kept& kept : early) {
    if (!kept.wait_type.empty() && kept.wait_type != to_text(node.wait_type)) continue;
    if (outcome_of_answer(node, kept.payload)) return &kept;
  }
  return nullptr;
}

std::vector<EventDraft> overtake(const State& state, const Act& act) {
  if (is_terminal(state.status) || act.id.empty()) return {};
  const bool signal = act.kind == Act::Kind::signal;
  const auto wait = wait_of(state, act);
  if (signal && state.ending && wait != state.waits.end() && !wait->second.resolve) {
    std::vector<Member> more{
        {"outcome", "cancelled"}, {"payload", act.payload}, {"signal_id", act.id}};
    if (!act.by.empty()) more.emplace_back("by", act.by);
    if (!act.traceparent.empty()) more.emplace_back("traceparent", act.traceparent);
    return {{EventType::wait_completed,
             wait_members(state, wait->first, wait->second, std::move(more))}};
  }
  const std::string& key = act.correlation_key;
  const bool early =
      signal && act.buffer && !is_own_key(key) && !key.empty() && key.size() <= kKeyMax;
  const bool mail = act.kind == Act::Kind::message && state.ending;
  if (!early && !mail) return {};
  if (state.message_names.contains(message_name(act.channel, key, act.id))) return {};
  const auto closed = state.closed_waits.find(key);
  const bool taken =
      early && closed != state.closed_waits.end() && closed->second.signal_id == act.id;
  return taken ? std::vector<EventDraft>() : std::vector<EventDraft>{kept_event(act)};
}

namespace {

bool has_expired(const Wait& wait, Instant now) {
  return wait.expires_at && *wait.expires_at <= now;
}

// The wait that has waited longest for this channel. One that has expired gets a message only when no other one waits: the
// message was accepted before the expiry.
const std::pair<const std::string, Wait>* receiver(const State& state, std::string_view channel,
                                                   Instant now) {
  const std::pair<const std::string, Wait>* first = nullptr;
  for (const auto& entry : state.waits) {
    const Wait& wait = entry.second;
    if (wait.type != WaitType::message || wait.channel != channel) continue;
    const auto rank = [now](const Wait& one) {
      return std::pair(has_expired(one, now), one.opened_seq);
    };
    if (!first || rank(wait) < rank(first->second)) first = &entry;
  }
  return first;
}

// The open wait that the act would answer; nullptr = none.
const Wait* answered_wait(const State& state, const Act& act, Instant now) {
  if (act.kind == Act::Kind::message) {
    const auto* const first = receiver(state, act.channel, now);
    return first == nullptr ? nullptr : &first->second;
  }
  if (act.kind != Act::Kind::signal) return nullptr;
  const auto wait = wait_of(state, act);
  const bool takes_signals = wait != state.waits.end() && wait->second.type != WaitType::message;
  return takes_signals ? &wait->second : nullptr;
}

}  // namespace

Status in_time(const State& state, const Act& act, Instant now) {
  const Wait* const wait = answered_wait(state, act, now);
  if (wait == nullptr || !has_expired(*wait, now)) return {};
  return fail(Code::wait_expired, "no answer came in time: the wait expired at " +
                                      to_text(*wait->expires_at) + ", and job " + state.job.text +
                                      " continues without an answer as soon as a process runs it");
}

Result<Taken> take_signal(const State& state, const Act& act, const Stamp& stamp) {
  AE_ASSIGN(const std::string key, key_of(state, act));
  if (auto closed = state.closed_waits.find(key);
      closed != state.closed_waits.end() && !key.starts_with("resolve/")) {
    AE_ASSIGN(Value before, duplicate(state, key, closed->second, act));
    return Taken{.events = {}, .answer = std::move(before)};
  }
  if (is_terminal(state.status)) return fail(Code::job_terminal, "the job has ended");
  auto wait = state.waits.find(key);
  if (wait == state.waits.end() && act.buffer) return keep_early(state, act, key);
  const bool open = wait != state.waits.end() && !wait->second.resolve &&
                    wait->second.type != WaitType::timer &&
                    wait->second.type != WaitType::message && !state.ending;
  if (!open) {
    return fail(Code::wait_mismatch, "no open wait of this job has the key \"" + key +
                                         "\"; `aetheris job " + state.job.text +
                                         "` lists its waits");
  }
  if (!act.wait_type.empty() && act.wait_type != to_text(wait->second.type)) {
    return fail(Code::wait_mismatch,
                "the wait \"" + key + "\" is of type " + std::string(to_text(wait->second.type)));
  }
  if (wait->second.question) return take_answer(state, key, wait->second, act);
  AE_ASSIGN(std::string_view outcome,
            outcome_of_answer(state.node_of(state.steps[wait->second.step]), act.payload));
  AE_ASSIGN(const auto edited, edited_arguments(state, wait->second, act, outcome));
  if (edited) outcome = "edited";
  Taken taken;
  if (wait->second.approval) {
    taken.events.push_back(approval_decision(state, wait->second, act, stamp, outcome));
  }
  std::vector<Member> more{{"outcome", outcome},
                           {"payload", edited ? answer_of(state, act) : act.payload}};
  if (!act.by.empty()) more.emplace_back("by", act.by);
  if (!act.id.empty()) more.emplace_back("signal_id", act.id);
  if (!act.traceparent.empty()) more.emplace_back("traceparent", act.traceparent);
  taken.events.push_back(
      {EventType::wait_completed, wait_members(state, wait->first, wait->second, std::move(more))});
  taken.answer =
      Value::object({{"correlation_key", key}, {"delivered", true}, {"outcome", outcome}});
  if (outcome == "rejected") {
    taken.answer =
        taken.answer.with("then", after_rejection(state, state.steps[wait->second.step]));
  }
  if (const std::string why = not_used(state, wait->second, stamp, outcome); !why.empty()) {
    taken.answer = taken.answer.with("applied", false).with("reason", why);
  }
  return taken;
}

// Kept in the order of arrival; whoever has waited longest for the channel gets it at once.
Result<Taken> take_message(const State& state, const Act& act, const Stamp& stamp) {
  if (act.channel.empty() || act.channel.size() > 256) {
    return fail(Code::input_invalid, "a channel has 1 to 256 bytes");
  }
  Taken taken;
  taken.answer =
      Value::object({{"accepted", true}, {"channel", act.channel}, {"message_id", act.id}});
  if (state.message_names.contains(message_name(act.channel, {}, act.id))) {
    taken.answer = taken.answer.with("duplicate", true);
    return taken;
  }
  if (is_terminal(state.status)) return fail(Code::job_terminal, "the job has ended");
  if (state.ending) return fail(Code::job_terminal, "the job is ending");
  taken.events.push_back(kept_event(act));
  if (const auto* const first =
          receiver(state, act.channel, stamp.now)) {  // the payload stands in the message
    taken.events.push_back({EventType::wait_completed,
                            wait_members(state, first->first, first->second,
                                         {{"outcome", "signalled"}, {"signal_id", act.id}})});
  }
  return taken;
}

Result<Taken> take_pause(const State& state, const Act& act) {
  if (is_terminal(state.status) || state.ending) {
    return fail(Code::job_terminal,
                is_terminal(state.status)
                    ? "the job has ended (" + std::string(to_text(state.status)) + ")"
                    : "the job is ending: it starts nothing any more");
  }
  if (state.is_paused()) return Taken{.events = {}, .answer = Value::object({{"paused", true}})};
  Taken taken;
  taken.answer = Value::object({{"pause_requested", true}});
  if (!state.pausing) {
    std::vector<Member> p;
    if (!act.by.empty()) p.emplace_back("by", act.by);
    if (!act.reason.empty()) p.emplace_back("reason", act.reason);
    taken.events.push_back({EventType::job_pause_requested, Value::object(std::move(p))});
  }
  if (state.status == JobStatus::queued || state.status == JobStatus::waiting) {
    taken.events.push_back(paused_event(act.reason));
    taken.answer = Value::object({{"paused", true}});
  }
  return taken;
}

Result<Taken> take_resume(const State& state, const Act& act) {
  if (is_terminal(state.status)) {
    return fail(Code::job_terminal,
                "the job has ended (" + std::string(to_text(state.status)) + ")");
  }
  const std::string by = act.by.empty() ? "somebody" : act.by;
  const Value answer = Value::object({{"resumed", true}});
  // Earlier builds parked until confirmation what this one parks until resume.
  const bool looks_again =
      state.awaits_confirmation() && state.parked_reason == kVerifierUnreachable;
  if (state.is_paused() || looks_again) {
    return Taken{.events = {{EventType::job_resumed, Value::object({{"by", by}})}},
                 .answer = answer};
  }
  if (state.pausing) {  // before it came to rest
    return Taken{.events = {{EventType::job_pause_requested,
                             Value::object({{"by", by}, {"withdrawn", true}})}},
                 .answer = answer};
  }
  if (state.status == JobStatus::parked) {
    return fail(Code::not_paused, "the job is parked (" + state.parked_reason + ") until `" +
                                      state.parked_until +
                                      "`, which `resume` does not do; "
                                      "`aetheris job " +
                                      state.job.text + "` shows how to continue it");
  }
  return fail(Code::not_paused,
              "the job is not paused: it is " + std::string(to_text(state.status)));
}

bool was_taken(const State& state, const Act& act) {
  if (state.message_names.contains(message_name(act.channel, act.correlation_key, act.id))) {
    return true;
  }
  switch (act.kind) {
    case Act::Kind::signal:
    case Act::Kind::resolve:  // its key says which call; the wait's key may have a number behind it
      return !act.id.empty() && std::ranges::any_of(state.closed_waits, [&](const auto& closed) {
        return closed.second.signal_id == act.id && closed.second.outcome != "cancelled";
      });
    case Act::Kind::cancel:
      return state.status == JobStatus::cancelled;
    case Act::Kind::resume:
      return !state.pausing && !is_blocked(state.status);
    case Act::Kind::plan:
      return state.plan_number > 0 && state.plan->hash == plan_hash(act.payload["task_graph"]) &&
             kept_results(state, act.payload["drop"]).empty();
    case Act::Kind::budget:
      return has_budget(state, act.payload);
    default:
      return false;
  }
}

}  // namespace ae::engine
