// decide: the plan's wishes, the ledger's rules, and the events that follow from both.
#include "engine/decide.h"

#include <algorithm>
#include <utility>

#include "core/json.h"

namespace ae::engine {
namespace {

// The roots of expressions at one step. Reads only what the plan check allows: `.input`, `.job`, transitive needs.
class PlanScope : public ExprScope {
 public:
  explicit PlanScope(const State& state) : state_(state) {}
  PlanScope(const State& state, const Node& map, const Value& item, std::uint32_t index)
      : state_(state), as_(map.as), item_(&item), index_(static_cast<std::int64_t>(index)) {}

  const Value* root(std::string_view name) const override {
    if (name == "input") return &state_.input;
    if (name == "job") return &state_.job_root;
    if (item_ && (name == "item" || (!as_.empty() && name == as_))) return item_;
    if (item_ && name == "index") return &index_;
    return nullptr;
  }
  const Value* step(std::string_view node_id) const override {
    auto it = state_.plan->by_id.find(std::string(node_id));
    if (it == state_.plan->by_id.end()) return nullptr;
    const Step& step = state_.steps[it->second];
    if (!step.failure) return &step.result;
    seen_ = state_.seen_result(step);
    return &seen_;
  }
  Value steps() const override {
    std::vector<Member> members;
    for (const Node& node : state_.plan->nodes) {
      members.emplace_back(node.id, state_.seen_result(state_.steps[node.index]));
    }
    return Value::object(std::move(members));
  }

 private:
  const State& state_;
  std::string_view as_;
  const Value* item_ = nullptr;
  Value index_;
  mutable Value seen_;
};

std::uint64_t mix(std::uint64_t x) {  // splitmix64: a stamp's one number becomes as many as needed
  x += 0x9e3779b97f4a7c15ULL;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
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
  void definite_failure(const Step& step);
  void doubtful(const Step& step);
  void orphan(const Step& step);
  void retry(const Step& step);
  void park(const Step& step, std::string_view reason);
  void close_unknown(const Step& step);
  void declare(const Step& step, bool close_earlier);
  void finish_tool(const Step& step);
  void finish_wait(const Step& step);
  void finish_map(const Step& step);
  void fail_step(const Step& step, std::string_view code, std::string_view message);
  void rest();
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
  Result<Value> arguments(const Node& node, const ExprScope& scope, const ToolPolicy& tool);
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
  std::size_t open_;        // tries open, with those this decision declares
  bool held_back_ = false;  // something could start but for a limit
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

Result<Value> Decider::arguments(const Node& node, const ExprScope& scope, const ToolPolicy& tool) {
  if (!node.has_args) return Value::object({});
  AE_ASSIGN(Value args, node.args.eval(scope));
  if (tool.args_schema) AE_TRY(tool.args_schema->check(args));
  return args;
}

// A step that fails before any call was made, or for good after it.
void Decider::fail_step(const Step& step, std::string_view code, std::string_view message) {
  emit_of(step, EventType::node_finished,
          {{"error", Value::object({{"code", code}, {"message", message}})},
           {"result_type", "permanent_failure"},
           {"try", static_cast<std::uint64_t>(step.call ? step.call->try_no : 1)}});
}

void Decider::ready(const Step& step) {
  const Node& node = s_.node_of(step);
  if (node.when && !step.branch) {
    auto value = node.when->eval(PlanScope(s_));
    if (!value) {
      emit_of(step, EventType::node_started, {{"try", 1}});
      fail_step(step, code_name(value.error().code), value.error().message);
      return;
    }
    const bool taken = !value->is_null() && !(value->is_bool() && !value->as_bool());
    emit_of(
        step, EventType::decision_recorded,
        {{"decision_id", decision_id_of(step, "when")}, {"kind", "branch"}, {"payload", taken}});
    if (!taken) {
      emit_of(step, EventType::node_finished,
              {{"result_type", "pure"}, {"skipped", true}, {"try", 1}});
    }
    return;  // the next call of decide goes on with it
  }
  if (step.branch && !*step.branch) {
    emit_of(step, EventType::node_finished,
            {{"result_type", "pure"}, {"skipped", true}, {"try", 1}});
    return;
  }
  switch (node.kind) {
    case NodeKind::tool:
      return start_tool(step);
    case NodeKind::wait:
      return start_wait(step);
    case NodeKind::map:
      return start_map(step);
  }
}

void Decider::start_tool(const Step& step) {
  if (open_ >= limits_.parallel_max) {
    held_back_ = true;
    return;
  }
  const Node& node = s_.node_of(step);
  const ToolPolicy& tool = s_.plan->tools[node.tool];
  const Value* item = nullptr;
  if (step.item != kNoItem) item = &s_.steps[step.node].map->over.items()[step.item];
  auto args = item ? arguments(node, PlanScope(s_, node, *item, step.item), tool)
                   : arguments(node, PlanScope(s_), tool);
  if (!step.started) emit_of(step, EventType::node_started, {{"try", 1}});
  if (!args) return fail_step(step, code_name(args.error().code), args.error().message);
  emit_first({step.id, node, std::move(*args)});
}

void Decider::start_wait(const Step& step) {
  const Node& node = s_.node_of(step);
  const PlanScope scope(s_);
  std::vector<Member> wait{{"wait_type", to_text(node.wait_type)}};
  emit_of(step, EventType::node_started, {{"try", 1}});
  std::string key = step.id.text;
  if (node.wait_key) {
    auto text = node.wait_key->eval(scope);
    if (!text) return fail_step(step, "expression_failed", text.error().message);
    if (!text->is_string() || text->as_string().empty() || text->as_string().size() > 256) {
      return fail_step(step, "expression_failed", "a wait's key must be a text of 1 to 256 bytes");
    }
    key = text->as_string();
    if (s_.waits.contains(key) || s_.closed_waits.contains(key) || key.starts_with("resolve/")) {
      return fail_step(step, "correlation_key_reused",
                       "the key \"" + key + "\" was used before in this job; make keys differ");
    }
  }
  wait.emplace_back("correlation_key", key);
  if (node.wait_for || node.wait_until) {
    auto text = node.wait_for ? node.wait_for->eval(scope) : node.wait_until->eval(scope);
    if (!text) return fail_step(step, "expression_failed", text.error().message);
    Result<Instant> due = fail(Code::expression_failed, "a timer needs a text");
    if (text->is_string() && node.wait_until) due = instant_from_text(text->as_string());
    if (text->is_string() && node.wait_for) {
      if (auto span = duration_from_text(text->as_string())) {
        due = stamp_.now + *span;
      } else {
        due = std::unexpected(span.error());
      }
    }
    if (!due) return fail_step(step, "expression_failed", due.error().message);
    // Nothing is scheduled past the job's deadline: that one fires first.
    wait.emplace_back("due_at", to_text(s_.deadline ? std::min(*due, *s_.deadline) : *due));
  }
  if (node.wait_expires) {
    const Instant expires = stamp_.now + *node.wait_expires;
    wait.emplace_back("expires_at",
                      to_text(s_.deadline ? std::min(expires, *s_.deadline) : expires));
  }
  emit_of(step, EventType::wait_opened, std::move(wait));
}

void Decider::start_map(const Step& step) {
  if (step.map) {  // the value is recorded
    emit_of(step, EventType::node_started, {{"try", 1}});
    return;
  }
  const Node& node = s_.node_of(step);
  auto over = node.over.eval(PlanScope(s_));
  std::string problem;
  if (!over) {
    problem = over.error().message;
  } else if (!over->is_array()) {
    problem = "the value of `map` must be an array";
  } else if (over->size() > PlanLimits{}.map_items_max) {
    problem = "the value of `map` has " + std::to_string(over->size()) + " items; at most " +
              std::to_string(PlanLimits{}.map_items_max) + " are allowed";
  }
  if (!problem.empty()) {
    emit_of(step, EventType::node_started, {{"try", 1}});
    return fail_step(step, "expression_failed", problem);
  }
  emit_of(step, EventType::decision_recorded,
          {{"decision_id", decision_id_of(step, "map")}, {"kind", "branch"}, {"payload", *over}});
  emit_of(step, EventType::node_started, {{"try", 1}});
}

void Decider::start_items(const Step& step) {
  const MapProgress& map = *step.map;
  const Node& node = s_.node_of(step);
  const ToolPolicy& tool = s_.plan->tools[node.tool];
  std::uint32_t active = map.active;
  for (std::uint32_t item = map.started; item < map.results.size(); ++item) {
    if (active >= node.max_parallel) return;
    if (open_ >= limits_.parallel_max || full()) {
      held_back_ = true;
      return;
    }
    active++;
    const Value& value = map.over.items()[item];
    const StepId id = s_.item_step_id(node, item);
    const auto both = [&](std::vector<Member> more) {
      more.emplace_back("node_id", node.id);
      more.emplace_back("step_id", id.text);
      return more;
    };
    emit(EventType::node_started, both({{"try", 1}}));
    auto args = arguments(node, PlanScope(s_, node, value, item), tool);
    if (!args) {
      emit(EventType::node_finished,
           both({{"error", Value::object({{"code", code_name(args.error().code)},
                                          {"message", args.error().message}})},
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
  if (open_ >= limits_.parallel_max) {
    held_back_ = true;
    return;
  }
  if (close_earlier && step.call->open) {
    close_unknown(step);
  }
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
bool may_repeat(const ToolPolicy& tool, std::string_view offered, const Invocation& call,
                Instant now, Duration send_window) {
  if (tool.effect == EffectClass::read) return true;
  if (call.tool_version != offered) return false;
  if (tool.effect == EffectClass::at_most_once) return false;
  // `first_send_by` is at most one send window after the first declaration.
  return !tool.dedupe_window || now - (call.first_send_by - send_window) < *tool.dedupe_window;
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
  const std::uint64_t chance = mix(stamp_.chance ^ s_.by_id.at(step.id)) >> 11;  // 53 bits
  const std::uint32_t next = call.counted + 1;
  const Duration wait = tool.retry.backoff(next, chance, call.retry_after);
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
  if (call.error.code == "not_sent") return declare(step, false);
  if (tries_left(tool, call)) return retry(step);
  fail_step(step, call.error.code, call.error.message);
}

// The newest try ended, and it may have happened.
void Decider::doubtful(const Step& step) {
  const Invocation& call = *step.call;
  const ToolPolicy& tool = s_.plan->tools[s_.node_of(step).tool];
  if (tries_left(tool, call) &&
      may_repeat(tool, offered(s_.node_of(step).tool), call, stamp_.now, limits_.send_window)) {
    return retry(step);
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
  if (!stamp_.owned && stamp_.now < call.send_by + tool.grace) {  // WaitOtherWorker
    return ask_again(call.send_by + tool.grace);
  }
  if (tool.on_in_doubt == OnInDoubt::resend &&
      may_repeat(tool, offered(s_.node_of(step).tool), call, stamp_.now, limits_.send_window)) {
    return declare(step, true);
  }
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
  if (step.failure) {  // the effect counts as done, its output broke a rule
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

// The command of this step was asked for before: what the ledger says decides.
void Decider::call(const Step& step) {
  const Invocation& call = *step.call;
  switch (admit(s_, {s_.by_id.at(step.id), call.tool, call.arguments_hash})) {
    case Verdict::declare:
      if (step.phase == StepPhase::settled) return definite_failure(step);
      if (step.phase == StepPhase::backoff && stamp_.now < step.not_before) {
        return ask_again(step.not_before);
      }
      return declare(step, step.phase == StepPhase::redo);
    case Verdict::in_doubt:
      return step.phase == StepPhase::calling ? orphan(step) : doubtful(step);
    case Verdict::recorded:
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
  Value result;
  if (s_.plan->output) {
    auto value = s_.plan->output->eval(PlanScope(s_));
    if (!value) {
      emit(EventType::job_failed, {{"code", code_name(value.error().code)},
                                   {"error", "output: " + value.error().message}});
      decision_.release = true;
      return;
    }
    result = std::move(*value);
  } else {  // the results of the nodes that nothing depends on
    std::vector<Member> members;
    for (const Node& node : s_.plan->nodes) {
      if (node.dependents.empty()) {
        members.emplace_back(node.id, s_.seen_result(s_.steps[node.index]));
      }
    }
    result = Value::object(std::move(members));
  }
  emit(EventType::job_completed, {{"result", std::move(result)}});
  decision_.release = true;
}

// The job is to end: nothing new starts; calls in flight are awaited; what stays unknown is closed and listed.
void Decider::end(const Ending& ending) {
  for (std::uint32_t index : s_.todo) {  // what is known is still recorded
    const Step& step = s_.steps[index];
    if (step.phase == StepPhase::committed || step.phase == StepPhase::done) this->step(index);
  }
  if (!decision_.events.empty()) return;
  for (std::uint32_t index : s_.calling) {
    if (s_.is_live(s_.steps[index])) return;
  }
  std::vector<Value> in_doubt;
  for (const Step& step : s_.steps) {
    if (!step.call || step.phase == StepPhase::done || step.phase == StepPhase::committed) continue;
    const bool definite =
        !step.call->open && step.call->outcome == OutcomeKind::failure && step.call->definite;
    if (step.call->open) {
      close_unknown(step);
    }
    const bool read = s_.plan->tools[s_.node_of(step).tool].effect == EffectClass::read;
    if (!definite && !read) in_doubt.push_back(step.call->key.text);
  }
  for (const auto& [key, wait] : s_.waits) {
    const Step& step = s_.steps[wait.step];
    emit_of(
        step, EventType::wait_completed,
        {{"correlation_key", key}, {"outcome", "cancelled"}, {"wait_type", to_text(wait.type)}});
  }
  std::vector<Member> p;
  if (!in_doubt.empty()) p.emplace_back("in_doubt", Value::array(std::move(in_doubt)));
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
    waits.emplace_back(entry.first);
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
  for (std::uint32_t index : s_.todo) {
    if (full()) break;
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

std::vector<std::uint32_t> next_asks(const State& state) {
  std::vector<std::uint32_t> asks;
  for (std::uint32_t index : state.todo) {
    const StepPhase phase = state.steps[index].phase;
    if (phase == StepPhase::ready || phase == StepPhase::settled || phase == StepPhase::backoff ||
        phase == StepPhase::redo || phase == StepPhase::calling) {
      asks.push_back(index);
    }
  }
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
