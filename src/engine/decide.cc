// decide: the plan's wishes, the ledger's rules, and the events that follow from both.
#include "engine/decide.h"

#include <algorithm>
#include <charconv>
#include <utility>

#include "core/json.h"
#include "core/seal.h"
#include "engine/evaluate.h"

namespace ae::engine {
namespace {

// Of a job_waiting event; each wait has its own wait_opened, so that the log stays linear in the work.
constexpr std::size_t kWaitsShownMax = 64;

Value error_value(const Error& error) {
  return Value::object({{"code", code_name(error.code)}, {"message", error.message}});
}

std::unexpected<Error> too_large(std::string_view what) {
  return fail(Code::payload_too_large, std::string(what) + " is longer than " +
                                           std::to_string(kValueMax >> 20) +
                                           " MiB as canonical JSON, the most that is kept");
}

std::uint64_t mix(std::uint64_t x) {  // splitmix64: a stamp's one number becomes as many as needed
  x += 0x9e3779b97f4a7c15ULL;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

std::uint64_t bits_of(const StepId& id) {
  std::uint64_t bits = 0;
  std::from_chars(id.text.data(), id.text.data() + id.text.size(), bits, 16);
  return bits;
}

// Makes the decision of one call of `decide`.
class Decider {
 public:
  Decider(const State& state, const Stamp& stamp, const DecideLimits& limits)
      : s_(state), stamp_(stamp), limits_(limits), open_(state.calling.size()) {}

  Decision run();

 private:
  void step(std::uint32_t index);
  void call(const Step& step);
  void ready(const Step& step);
  void start_tool(const Step& step);
  void start_wait(const Step& step);
  void start_map(const Step& step);
  void start_items(const Step& step);
  Result<Value> arguments(const Node& node, std::uint32_t item) const;
  void definite_failure(const Step& step);
  void doubtful(const Step& step);
  void orphan(const Step& step);
  void retry(const Step& step);
  bool may_repeat(const Step& step) const;
  void park(const Step& step, std::string_view reason);
  void close_unknown(const Step& step);
  void declare(const Step& step, bool close_earlier);
  void after_backoff(const Step& step);
  void commit_command(const Step& step);
  void finish_tool(const Step& step);
  void finish_wait(const Step& step);
  void finish_map(const Step& step);
  void start(const Step& step);
  void skip(const Step& step);
  void fail_step(const Step& step, std::string_view code, std::string_view message);
  void fail_step(const Step& step, const Error& error) {
    fail_step(step, code_name(error.code), error.message);
  }
  void fails_job(const Step& step);
  void rest();
  void cancel_wait(const std::string& key, const Wait& wait);
  void end(const Ending& ending);
  void complete();

  // A try that may be declared now.
  struct Declaration {
    StepId step;
    const Node& node;
    Value args;  // of the first try; a later one sends what is recorded
  };
  void emit_first(const Declaration& d);
  void emit_started(const Declaration& d, std::vector<Member> keys);
  void emit(EventType type, std::vector<Member> payload) {
    decision_.events.push_back({type, Value::object(std::move(payload))});
  }
  std::string decision_id_of(const Step& step, std::string_view what) const {
    return step_id(s_.job, s_.plan->decision, s_.path_of(step) + "#" + std::string(what),
                   "decision")
        .text;
  }
  void emit_of(const Step& step, EventType type, std::vector<Member> more) {
    more.emplace_back("node_id", s_.node_of(step).id);
    more.emplace_back("step_id", step.id.text);
    emit(type, std::move(more));
  }
  void ask_again(Instant at) {
    if (!decision_.ask_again || at < *decision_.ask_again) decision_.ask_again = at;
  }
  const std::string& offered(std::uint32_t tool) const {
    return stamp_.tool_versions ? (*stamp_.tool_versions)[tool] : s_.plan->tools[tool].version;
  }
  bool full() const { return decision_.events.size() >= limits_.events_max; }

  const State& s_;
  const Stamp& stamp_;
  const DecideLimits& limits_;
  std::size_t open_;            // tries open, with those this decision declares
  bool held_back_ = false;      // something could start but for a limit
  bool failed_ = false;         // an event of this decision ends the job: nothing starts after it
  std::set<std::string> keys_;  // of waits that this decision opens
  Decision decision_;
};

// The first try of a command: its keys are made here, and never again.
void Decider::emit_first(const Declaration& d) {
  const std::string text = canonical(d.args);
  const IdempotencyKey key =
      idempotency_key(s_.job, d.step, s_.plan->tools[d.node.tool].name, text);
  const InvocationId invocation = invocation_id(s_.job, d.step, key);
  emit(EventType::command_emitted, {{"command_id", d.step.text},
                                    {"input_ref", invocation.text},
                                    {"kind", "tool"},
                                    {"node_id", d.node.id},
                                    {"step_id", d.step.text}});
  emit_started(d, {{"arguments", d.args},
                   {"arguments_hash", to_hex(sha256(text))},
                   {"external_key", external_key(s_.job, d.step, s_.attempt).text},
                   {"idempotency_key", key.text},
                   {"invocation_id", invocation.text},
                   {"try", 1}});
}

void Decider::emit_started(const Declaration& d, std::vector<Member> keys) {
  const ToolPolicy& tool = s_.plan->tools[d.node.tool];
  const Instant send_by = std::min(stamp_.now + limits_.send_window, stamp_.lease_until);
  for (Member& member : std::vector<Member>{{"command_id", d.step.text},
                                            {"deadline", to_text(send_by + tool.timeout)},
                                            {"effect_class", to_text(tool.effect)},
                                            {"node_id", d.node.id},
                                            {"send_by", to_text(send_by)},
                                            {"step_id", d.step.text},
                                            {"tool_name", tool.name},
                                            {"tool_version", offered(d.node.tool)}}) {
    keys.push_back(std::move(member));
  }
  emit(EventType::tool_invocation_started, std::move(keys));
  decision_.perform.push_back(d.step);
  open_++;
}

// A step that fails before any call was made, or for good after it.
void Decider::fail_step(const Step& step, std::string_view code, std::string_view message) {
  fails_job(step);
  emit_of(step, EventType::node_finished,
          {{"error", Value::object({{"code", code}, {"message", message}})},
           {"result_type", "permanent_failure"},
           {"try", static_cast<std::uint64_t>(step.call ? step.call->try_no : 1)}});
}

void Decider::fails_job(const Step& step) {
  if (step.item == kNoItem && !s_.node_of(step).continue_on_error) failed_ = true;
}

void Decider::skip(const Step& step) {
  emit_of(step, EventType::node_finished, {{"result_type", "pure"}, {"skipped", true}, {"try", 1}});
}

void Decider::start(const Step& step) {
  if (!step.started) emit_of(step, EventType::node_started, {{"try", 1}});
}

void Decider::ready(const Step& step) {
  if (step.item != kNoItem) return start_tool(step);
  const Node& node = s_.node_of(step);
  if (node.when && !step.branch) {
    auto taken = when_of(s_, node);
    if (!taken) {
      start(step);
      return fail_step(step, taken.error());
    }
    emit_of(
        step, EventType::decision_recorded,
        {{"decision_id", decision_id_of(step, "when")}, {"kind", "branch"}, {"payload", *taken}});
    if (!*taken) skip(step);
    return;  // the next call of decide goes on with it
  }
  if (step.branch && !*step.branch) return skip(step);
  switch (node.kind) {
    case NodeKind::tool:
      return start_tool(step);
    case NodeKind::wait:
      return start_wait(step);
    case NodeKind::map:
      return start_map(step);
  }
}

Result<Value> Decider::arguments(const Node& node, std::uint32_t item) const {
  auto args = arguments_of(s_, node, item);
  if (args && canonical_exceeds(*args, kValueMax)) return too_large("the arguments");
  return args;
}

void Decider::start_tool(const Step& step) {
  if (open_ >= limits_.parallel_max) {
    held_back_ = true;
    return;
  }
  auto args = arguments(s_.node_of(step), step.item);
  start(step);
  if (!args) return fail_step(step, args.error());
  emit_first({step.id, s_.node_of(step), std::move(*args)});
}

void Decider::start_wait(const Step& step) {
  const Node& node = s_.node_of(step);
  start(step);
  std::string key = step.id.text;
  if (node.wait_key) {
    auto named = wait_key_of(s_, node);
    if (!named) return fail_step(step, named.error());
    key = std::move(*named);
  }
  const bool used = s_.waits.contains(key) || s_.closed_waits.contains(key) || keys_.contains(key);
  if (used || key.starts_with("resolve/") || key.starts_with("approval/")) {
    return fail_step(step, {Code::correlation_key_reused,
                            "the key \"" + key + "\" was used before in this job, or is one of " +
                                "the runtime's own (resolve/…, approval/…); make keys differ"});
  }
  std::vector<Member> wait{{"correlation_key", key}, {"wait_type", to_text(node.wait_type)}};
  // Nothing is scheduled past the job's deadline: that one fires first.
  const auto within = [&](Instant at) {
    return to_text(s_.deadline ? std::min(at, *s_.deadline) : at);
  };
  if (node.wait_type == WaitType::timer) {
    auto due = due_of(s_, node, stamp_.now);
    if (!due) return fail_step(step, {Code::expression_failed, due.error().message});
    wait.emplace_back("due_at", within(*due));
  }
  if (node.wait_expires) wait.emplace_back("expires_at", within(stamp_.now + *node.wait_expires));
  keys_.insert(std::move(key));
  emit_of(step, EventType::wait_opened, std::move(wait));
}

void Decider::start_map(const Step& step) {
  if (step.map) return start(step);  // the value is recorded
  auto over = over_of(s_, s_.node_of(step));
  if (over && canonical_exceeds(*over, kValueMax)) over = too_large("the map's value");
  if (!over) {
    start(step);
    return fail_step(step, over.error());
  }
  emit_of(step, EventType::decision_recorded,
          {{"decision_id", decision_id_of(step, "map")}, {"kind", "branch"}, {"payload", *over}});
  start(step);
}

void Decider::start_items(const Step& step) {
  const MapProgress& map = *step.map;
  const Node& node = s_.node_of(step);
  std::uint32_t active = map.active;
  for (std::uint32_t item = map.started; item < map.results.size(); ++item) {
    if (active >= node.max_parallel) return;
    if (open_ >= limits_.parallel_max || full()) {
      held_back_ = true;
      return;
    }
    active++;
    const StepId id = s_.item_step_id(node, item);
    const auto both = [&](std::vector<Member> more) {
      more.emplace_back("node_id", node.id);
      more.emplace_back("step_id", id.text);
      return more;
    };
    emit(EventType::node_started, both({{"try", 1}}));
    auto args = arguments(node, item);
    if (!args) {
      emit(EventType::node_finished, both({{"error", error_value(args.error())},
                                           {"result_type", "permanent_failure"},
                                           {"try", 1}}));
      if (!node.collect_errors) return;  // the map's fate is decided when this is applied
      active--;
      continue;
    }
    emit_first({id, node, std::move(*args)});
  }
}

// A try that nobody heard of again.
void Decider::close_unknown(const Step& step) {
  emit(EventType::tool_invocation_finished,
       {{"invocation_id", step.call->id.text},
        {"outcome", "unknown"},
        {"step_id", step.id.text},
        {"try", static_cast<std::uint64_t>(step.call->try_no)}});
}

// A later try of a call: the recorded arguments are the ones sent again, under the same keys.
void Decider::declare(const Step& step, bool close_earlier) {
  // An orphan is among the open tries: its resend takes its own place.
  if (step.phase == StepPhase::calling) {
    open_--;
  } else if (open_ >= limits_.parallel_max) {
    held_back_ = true;
    return;
  }
  if (close_earlier && step.call->open) close_unknown(step);
  const Invocation& call = *step.call;
  emit_started({step.id, s_.node_of(step), {}},
               {{"arguments", call.arguments},
                {"arguments_hash", call.arguments_hash},
                {"external_key", call.external_key.text},
                {"idempotency_key", call.key.text},
                {"invocation_id", call.id.text},
                {"try", static_cast<std::uint64_t>(call.try_no + 1)}});
}

bool tries_left(const ToolPolicy& tool, const Invocation& call) {
  return call.counted < tool.retry.max_attempts && tool.retry.covers(call.error.code);
}

// Another try under the same external key does no harm.
bool Decider::may_repeat(const Step& step) const {
  const Invocation& call = *step.call;
  const std::uint32_t index = s_.node_of(step).tool;
  const ToolPolicy& tool = s_.plan->tools[index];
  if (tool.effect == EffectClass::read) return true;
  if (tool.effect == EffectClass::at_most_once || call.tool_version != offered(index)) return false;
  // `first_send_by` is at most one send window after the first declaration.
  const Instant declared = call.first_send_by - limits_.send_window;
  return !tool.dedupe_window || stamp_.now - declared < *tool.dedupe_window;
}

void Decider::park(const Step& step, std::string_view reason) {
  emit_of(step, EventType::wait_opened,
          {{"correlation_key", "resolve/" + step.call->key.text +
                                   (s_.closed_waits.contains("resolve/" + step.call->key.text)
                                        ? "#" + std::to_string(step.call->try_no)
                                        : "")},
           {"reason", reason},
           {"wait_type", "human"}});
}

void Decider::retry(const Step& step) {
  const Invocation& call = *step.call;
  const ToolPolicy& tool = s_.plan->tools[s_.node_of(step).tool];
  // Of the step's own id, so that the order in which branches move changes nothing. 53 bits: what a JSON number holds;
  // `backoff` looks at the upper ones of 64.
  const std::uint64_t chance = mix(stamp_.chance ^ bits_of(step.id)) >> 11;
  const std::uint32_t next = (call.unsent > 0 ? call.unsent : call.counted) + 1;
  const Duration wait = tool.retry.backoff(next, chance << 11, call.retry_after);
  emit(EventType::random_recorded,
       {{"effect_id", step.id.text + ":random:" + std::to_string(call.try_no)}, {"value", chance}});
  emit_of(step, EventType::decision_recorded,
          {{"decision_id", decision_id_of(step, "retry" + std::to_string(call.try_no))},
           {"kind", "retry"},
           {"not_before", to_text(stamp_.now + wait)},
           {"payload", Value::object({{"try", static_cast<std::uint64_t>(call.try_no + 1)}})},
           {"reason", call.error.code}});
}

// The newest try ended, and for sure nothing happened.
void Decider::definite_failure(const Step& step) {
  const Invocation& call = *step.call;
  const ToolPolicy& tool = s_.plan->tools[s_.node_of(step).tool];
  if (call.unsent > 0) {
    // Another process could not send it; this one tries at once, and then ever more slowly.
    return call.attempt == s_.attempt ? retry(step) : declare(step, false);
  }
  if (tries_left(tool, call)) return retry(step);
  fail_step(step, call.error.code, call.error.message);
}

// The newest try ended, and it may have happened.
void Decider::doubtful(const Step& step) {
  const Invocation& call = *step.call;
  const ToolPolicy& tool = s_.plan->tools[s_.node_of(step).tool];
  if (tries_left(tool, call) && may_repeat(step)) {
    return step.phase == StepPhase::backoff ? declare(step, false) : retry(step);
  }
  if (tool.effect == EffectClass::read) return fail_step(step, call.error.code, call.error.message);
  if (tool.on_in_doubt == OnInDoubt::fail) {
    return fail_step(
        step, code_name(Code::invocation_in_doubt),
        "the call may have happened (" + call.error.code + "); the tool says on_in_doubt: fail");
  }
  park(step, call.error.code.empty() ? "unknown" : call.error.code);
}

// A try that another attempt left open.
void Decider::orphan(const Step& step) {
  const Invocation& call = *step.call;
  const ToolPolicy& tool = s_.plan->tools[s_.node_of(step).tool];
  if (!stamp_.owned) {  // WaitOtherWorker: until the lease that it was sent under has ended, and its grace
    const Instant settled = std::max(call.send_by, stamp_.held_since) + tool.grace;
    if (stamp_.now < settled) return ask_again(settled);
  }
  if (tool.on_in_doubt == OnInDoubt::resend && may_repeat(step)) return declare(step, true);
  if (tool.on_in_doubt == OnInDoubt::fail) {
    close_unknown(step);
    return fail_step(step, code_name(Code::invocation_in_doubt),
                     "the runtime stopped during the call, which may have happened; the tool says "
                     "on_in_doubt: fail");
  }
  park(step, "the runtime stopped during the call");
}

void Decider::finish_tool(const Step& step) {
  const Invocation& call = *step.call;
  if (auto wait = s_.waits.find(step.wait_key); wait != s_.waits.end()) {
    cancel_wait(wait->first, wait->second);  // the answer came before the person's
  }
  if (step.failure) {  // the effect counts as done, its output broke a rule
    fails_job(step);
    emit_of(step, EventType::node_finished,
            {{"error",
              Value::object({{"code", step.failure->code}, {"message", step.failure->message}})},
             {"result_of", call.id.text},
             {"result_type", "permanent_failure"},
             {"try", static_cast<std::uint64_t>(call.try_no)}});
  } else {
    emit_of(step, EventType::node_finished,
            {{"result_of", call.id.text},
             {"result_type", "side_effect_committed"},
             {"try", static_cast<std::uint64_t>(call.try_no)}});
  }
  emit_of(step, EventType::step_committed, {{"command_id", step.id.text}});
}

void Decider::finish_wait(const Step& step) {
  const Node& node = s_.node_of(step);
  if (step.timed_out && !node.continue_on_expire) {
    return fail_step(step, code_name(Code::wait_expired),
                     "nobody answered before the wait expired");
  }
  emit_of(step, EventType::node_finished,
          {{"result_of", step.id.text}, {"result_type", "pure"}, {"try", 1}});
}

void Decider::finish_map(const Step& step) {
  if (step.map->failure) {
    return fail_step(step, step.map->failure->code, step.map->failure->message);
  }
  emit_of(step, EventType::node_finished,
          {{"result_of", step.id.text}, {"result_type", "pure"}, {"try", 1}});
}

// The time for another try has come, or not yet. A long back-off may end outside of the downstream's memory.
void Decider::after_backoff(const Step& step) {
  if (stamp_.now < step.not_before) return ask_again(step.not_before);
  if (s_.may_have_happened(step)) return doubtful(step);
  declare(step, false);
}

// A success is in the log, its command_committed is not.
void Decider::commit_command(const Step& step) {
  emit_of(step, EventType::command_committed,
          {{"command_id", step.id.text}, {"result_of", step.call->id.text}});
}

// The command of this step was asked for before: what the ledger says decides.
void Decider::call(const Step& step) {
  const Invocation& call = *step.call;
  switch (admit(s_, {s_.by_id.at(step.id), call.tool, call.arguments_hash})) {
    case Verdict::declare:
      if (step.phase == StepPhase::settled) return definite_failure(step);
      if (step.phase == StepPhase::backoff) return after_backoff(step);
      return declare(step, step.phase == StepPhase::redo);
    case Verdict::in_doubt:
      return step.phase == StepPhase::calling ? orphan(step) : doubtful(step);
    case Verdict::recorded:
      if (step.phase == StepPhase::settled) commit_command(step);
      return;
    case Verdict::not_yet:
    case Verdict::refuse:
      return;
    case Verdict::non_determinism:
      AE_CHECK(false, "a plan's recorded call differs from itself: " + step.id.text);
  }
}

void Decider::step(std::uint32_t index) {
  const Step& step = s_.steps[index];
  switch (step.phase) {
    case StepPhase::ready:
      return ready(step);
    case StepPhase::calling:
    case StepPhase::settled:
    case StepPhase::backoff:
    case StepPhase::redo:
      return call(step);
    case StepPhase::refused:
      if (step.call->open) {
        close_unknown(step);
      }
      return fail_step(step, code_name(Code::invocation_in_doubt), "resolved as failed");
    case StepPhase::committed:
      return finish_tool(step);
    case StepPhase::answered:
      return finish_wait(step);
    case StepPhase::mapping:
      if (!step.map->failure && step.map->started < step.map->results.size())
        return start_items(step);
      if (step.map->active == 0) finish_map(step);
      return;
    case StepPhase::done:  // a crash between node_finished and step_committed
      return emit_of(step, EventType::step_committed, {{"command_id", step.id.text}});
    case StepPhase::blocked:
    case StepPhase::in_doubt:
    case StepPhase::waiting:
      return;
  }
}

// Everything is done: the output, then the end.
void Decider::complete() {
  auto result = output_of(s_);
  if (result && canonical_exceeds(*result, kValueMax)) result = too_large("the output");
  if (!result) {
    emit(EventType::job_failed, {{"code", code_name(result.error().code)},
                                 {"error", "output: " + result.error().message}});
    decision_.release = true;
    return;
  }
  emit(EventType::job_completed, {{"result", std::move(*result)}});
  decision_.release = true;
}

void Decider::cancel_wait(const std::string& key, const Wait& wait) {
  emit_of(s_.steps[wait.step], EventType::wait_completed,
          {{"correlation_key", key}, {"outcome", "cancelled"}, {"wait_type", to_text(wait.type)}});
}

// The job is to end: nothing new starts; calls in flight are awaited; what stays unknown is closed and listed.
void Decider::end(const Ending& ending) {
  for (std::uint32_t index : s_.todo) {  // what is known is still recorded
    const Step& step = s_.steps[index];
    const bool success =
        step.phase == StepPhase::settled && step.call->outcome == OutcomeKind::success;
    if (success) commit_command(step);
    if (step.phase == StepPhase::committed || step.phase == StepPhase::done) this->step(index);
  }
  if (!decision_.events.empty()) return;
  for (std::uint32_t index : s_.calling) {
    const Step& step = s_.steps[index];
    if (s_.is_live(step)) return;
    // Another process may still perform it, and put down what it saw.
    if (!stamp_.owned && stamp_.now < step.call->deadline) return ask_again(step.call->deadline);
  }
  std::vector<Value> in_doubt;
  for (const Step& step : s_.steps) {
    if (!step.call) continue;
    if (s_.may_have_happened(step)) in_doubt.emplace_back(step.call->key.text);
    if (step.call->open) close_unknown(step);
  }
  for (const auto& [key, wait] : s_.waits) cancel_wait(key, wait);
  std::vector<Member> p;
  if (!in_doubt.empty()) p.emplace_back("in_doubt", Value::array(std::move(in_doubt)));
  if (!s_.undelivered.empty()) p.emplace_back("undelivered", Value::array(s_.undelivered));
  if (ending.cancelled) {
    if (!ending.by.empty()) p.emplace_back("by", ending.by);
    if (!ending.message.empty()) p.emplace_back("reason", ending.message);
    emit(EventType::job_cancelled, std::move(p));
  } else {
    p.emplace_back("code", ending.code);
    p.emplace_back("error", ending.message);
    if (!ending.node_id.empty()) p.emplace_back("node_id", ending.node_id);
    emit(EventType::job_failed, std::move(p));
  }
  decision_.release = true;
}

// Nothing can move now: say what the job waits for.
void Decider::rest() {
  if (held_back_) return;
  if (s_.nodes_left == 0) return complete();
  std::optional<Instant> backoff;
  for (std::uint32_t index : s_.todo) {
    const Step& step = s_.steps[index];
    if (step.phase == StepPhase::calling) return;  // an orphan whose time has not come
    if (step.phase == StepPhase::backoff && (!backoff || step.not_before < *backoff)) {
      backoff = step.not_before;
    }
  }
  if (backoff) {
    if (*backoff - stamp_.now <= limits_.held_backoff_max) return;
    decision_.events.push_back(requeued_event("backoff", backoff));
    decision_.release = true;
    return;
  }
  AE_CHECK(!s_.waits.empty(), "nothing can move, nothing is awaited: " + s_.job.text);
  const bool all_resolve =
      std::ranges::all_of(s_.waits, [](const auto& entry) { return entry.second.resolve; });
  decision_.release = true;
  if (all_resolve) {
    emit(EventType::job_parked,
         {{"reason", code_name(Code::invocation_in_doubt)}, {"until", "resolve"}});
    return;
  }
  std::vector<Value> waits;
  const std::pair<const std::string, Wait>* first = nullptr;
  for (const auto& entry : s_.waits) {
    if (!entry.second.resolve && (!first || entry.second.step < first->second.step)) first = &entry;
    if (waits.size() < kWaitsShownMax) waits.emplace_back(entry.first);
  }
  std::vector<Member> p{{"correlation_key", first->first},
                        {"waits", Value::array(std::move(waits))},
                        {"wait_type", to_text(first->second.type)}};
  if (first->second.expires_at) p.emplace_back("expires_at", to_text(*first->second.expires_at));
  emit_of(s_.steps[first->second.step], EventType::job_waiting, std::move(p));
}

Decision Decider::run() {
  if (s_.status == JobStatus::none || is_terminal(s_.status)) return {};
  if (s_.ending) {
    end(*s_.ending);
    return std::move(decision_);
  }
  if (s_.status != JobStatus::running) return {};
  const std::uint32_t lost_max =
      s_.plan->max_attempts ? s_.plan->max_attempts : limits_.lost_claims_max;
  if (s_.lost_claims >= lost_max) {
    end({.cancelled = false,
         .code = std::string(code_name(Code::max_attempts)),
         .message = std::to_string(s_.lost_claims) + " attempts in a row ended without progress",
         .node_id = {},
         .by = {}});
    return std::move(decision_);
  }
  if (s_.seq >= limits_.job_events_max) {
    end({.cancelled = false,
         .code = std::string(code_name(Code::events_limit)),
         .message = "the job has " + std::to_string(s_.seq) + " events, the most that one may have",
         .node_id = {},
         .by = {}});
    return std::move(decision_);
  }
  for (std::uint32_t index : s_.todo) {
    if (full() || failed_) break;
    step(index);
  }
  for (std::uint32_t index : s_.startable) {
    if (full() || failed_ || held_back_) break;
    step(index);
  }
  if (decision_.events.empty() && s_.calling.empty()) rest();
  if (decision_.events.empty()) {
    if (auto due = s_.next_due()) ask_again(*due);
  }
  return std::move(decision_);
}

}  // namespace

Verdict admit(const State& state, const Ask& ask) {
  const Step& step = state.steps[ask.step];
  if (step.call &&
      (step.call->tool != ask.tool || step.call->arguments_hash != ask.arguments_hash)) {
    return Verdict::non_determinism;
  }
  if (state.ending || is_terminal(state.status)) return Verdict::refuse;
  switch (step.phase) {
    case StepPhase::committed:
    case StepPhase::done:
      return step.failure && !step.call ? Verdict::refuse : Verdict::recorded;
    case StepPhase::calling:
      return state.is_live(step) ? Verdict::not_yet : Verdict::in_doubt;
    case StepPhase::in_doubt:
      return Verdict::in_doubt;
    case StepPhase::settled:
      if (step.call->outcome == OutcomeKind::success) return Verdict::recorded;
      return step.call->outcome == OutcomeKind::failure && step.call->definite ? Verdict::declare
                                                                               : Verdict::in_doubt;
    case StepPhase::ready:
    case StepPhase::backoff:
    case StepPhase::redo:
      return Verdict::declare;
    default:
      return Verdict::refuse;
  }
}

bool asks_for(const State& state, std::uint32_t step) {
  if (state.startable.contains(step)) return true;
  if (!state.todo.contains(step)) return false;
  const StepPhase phase = state.steps[step].phase;
  return phase == StepPhase::settled || phase == StepPhase::backoff || phase == StepPhase::redo ||
         phase == StepPhase::calling;
}

std::vector<std::uint32_t> next_asks(const State& state) {
  std::vector<std::uint32_t> asks(state.startable.begin(), state.startable.end());
  for (std::uint32_t index : state.todo) {
    if (asks_for(state, index)) asks.push_back(index);
  }
  std::ranges::sort(asks);
  return asks;
}

Decision decide(const State& state, const Stamp& stamp, const DecideLimits& limits) {
  return Decider(state, stamp, limits).run();
}

std::vector<EventDraft> job_events(const NewJobEvents& job) {
  std::vector<Member> created{
      {"agent", job.agent}, {"execution_version", job.execution_version}, {"input", job.input}};
  if (job.labels.size() > 0) created.emplace_back("labels", job.labels);
  if (!job.idempotency_key.empty()) created.emplace_back("idempotency_key", job.idempotency_key);
  if (job.deadline) created.emplace_back("deadline", to_text(*job.deadline));
  std::vector<Member> plan{{"decision_id", job.plan->decision.text},
                           {"decision_locked", true},
                           {"plan_hash", to_hex(job.plan->hash)},
                           {"plan_input_hash", to_hex(sha256(canonical(job.input)))},
                           {"planned_by", "file"},
                           {"schema_version", 1},
                           {"task_graph", job.plan->task_graph}};
  return {{EventType::job_created, Value::object(std::move(created))},
          {EventType::plan_generated, Value::object(std::move(plan))}};
}

EventDraft running_event(const AttemptId& attempt, std::uint64_t epoch, std::string_view worker) {
  return {EventType::job_running,
          Value::object({{"attempt_id", attempt.text}, {"epoch", epoch}, {"worker_id", worker}})};
}

EventDraft requeued_event(std::string_view reason, std::optional<Instant> not_before) {
  std::vector<Member> p{{"reason", reason}};
  if (not_before) p.emplace_back("not_before", to_text(*not_before));
  return {EventType::job_requeued, Value::object(std::move(p))};
}

}  // namespace ae::engine
