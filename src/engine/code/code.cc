// Queries on a code node: positions, outcomes, and what a new routine is given.
#include "engine/code/code.h"

#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <unordered_set>
#include <utility>

#include "json/json.h"
#include "log/decisions.h"
#include "log/seal.h"

namespace ae::engine {
namespace {

constexpr std::size_t kNameMax = 64, kKeyMax = 128, kDigitsOfContent = 16;

bool is_letter_or_digit(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
}

// Takes the longest prefix of these characters.
template <class Allowed>
std::string_view take(std::string_view& text, Allowed allowed) {
  std::size_t n = 0;
  while (n < text.size() && allowed(text[n])) n++;
  const std::string_view taken = text.substr(0, n);
  text.remove_prefix(n);
  return taken;
}

bool take_name(std::string_view& text) {
  const auto taken = take(text, [](char c) {
    return is_letter_or_digit(c) || c == '_' || c == '.' || c == ':' || c == '-';
  });
  return !taken.empty() && taken.size() <= kNameMax;
}

// [ "@" key ] [ "~" 16 hex digits ] [ "#" n ]
bool is_suffix(std::string_view text) {
  if (text.starts_with('@')) {
    text.remove_prefix(1);
    const auto key = take(text, [](char c) {
      return is_letter_or_digit(c) || c == '_' || c == '.' || c == ':' || c == '-';
    });
    if (key.empty() || key.size() > kKeyMax) return false;
  }
  if (text.starts_with('~')) {
    text.remove_prefix(1);
    const auto digits =
        take(text, [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
    if (digits.size() != kDigitsOfContent) return false;
  }
  if (text.starts_with('#')) {
    text.remove_prefix(1);
    std::uint64_t n = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), n);
    if (error != std::errc() || n < 2 || text.front() == '0') return false;
    text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  }
  return text.empty();
}

std::unexpected<Error> too_large_result() {
  return fail(
      Code::payload_too_large,
      "the result of a scope is longer than {} MiB as canonical JSON, the most that is kept",
      kValueMax >> 20);
}

std::unexpected<Error> too_large_to_emit() {
  return fail(Code::payload_too_large, "an emitted value has at most {} KiB", kEmittedMax >> 10);
}

// { scope "/" } n
bool is_number_in_scope(std::string_view text) {
  const std::size_t slash = text.rfind('/');
  if (slash != text.npos && !is_position(text.substr(0, slash))) return false;
  const std::string_view digits = slash == text.npos ? text : text.substr(slash + 1);
  return !digits.empty() && digits.size() <= 19 && digits.front() != '0' &&
         std::ranges::all_of(digits, [](char c) { return c >= '0' && c <= '9'; });
}

// time:…, uuid:…, random, patch:ID
Result<EventBody> recorded_value_event(const State& state, const Step& code,
                                       const Advance::NewValue& value) {
  const std::string_view name = value.name;
  if (!is_code_value(name, value.value)) {
    return fail(Code::input_invalid, "\"{}\" cannot be recorded", name.substr(0, 100));
  }
  const std::string effect = fmt::format("{}:{}", code.id.text, name);
  if (name.starts_with("time:")) return TimeRecorded{.effect_id = effect, .value = value.value};
  if (name.starts_with("uuid:")) return UuidRecorded{.effect_id = effect, .value = value.value};
  if (name == "random") return RandomRecorded{.effect_id = effect, .value = value.value};
  const std::string path = fmt::format("{}#{}", state.path_of(code), name);
  return decision_event(
      PatchDecided{.patch = std::string(name.substr(6)), .value = value.value.as_bool()},
      {.decision_id = decision_at(state, path),
       .node_id = state.node_of(code).id,
       .step_id = code.id});
}

}  // namespace

bool is_position(std::string_view text) {
  if (text.empty() || text.size() > kPositionMax) return false;
  for (std::size_t scopes = 0; scopes <= kScopesMax; ++scopes) {
    if (!take_name(text)) return false;
    if (!text.starts_with('/')) return is_suffix(text);
    text.remove_prefix(1);
  }
  return false;
}

std::string_view scope_of_value(std::string_view name) {
  const std::size_t colon = name.find(':');
  return colon == name.npos ? std::string_view() : name.substr(colon + 1);
}

bool is_request_name(std::string_view text) { return take_name(text) && text.empty(); }

bool is_code_value(std::string_view name, const Value& value) {
  if (name.size() > kPositionMax) return false;
  if (name == "random") return value.is_string();
  if (name.starts_with("patch:")) return value.is_bool() && is_request_name(name.substr(6));
  if (name.starts_with("uuid:")) return value.is_string() && is_number_in_scope(name.substr(5));
  return name.starts_with("time:") && value.is_object() && is_number_in_scope(name.substr(5));
}

std::optional<TurnPosition> turn_at(std::string_view position) {
  constexpr std::size_t kDigitsMax = 18;
  const std::size_t slash = position.rfind('/');
  if (slash == position.npos) return std::nullopt;
  const std::string_view digits = position.substr(slash + 1);
  TurnPosition turn{.loop = position.substr(0, slash)};
  const auto [end, error] = std::from_chars(digits.begin(), digits.end(), turn.number);
  const bool is_number = error == std::errc() && end == digits.end() &&
                         digits.size() <= kDigitsMax && (digits == "0" || digits.front() != '0');
  if (!is_number) return std::nullopt;
  return turn;
}

namespace {

bool is_ended_turn(const CodeProgress& code, std::string_view position) {
  if (code.loops.empty()) return false;
  const auto turn = turn_at(position);
  if (!turn) return false;
  const auto loop = code.loops.find(turn->loop);
  return loop != code.loops.end() && turn->number < loop->second.ended;
}

// The step of a scope, or of a turn, which has the same id; nullptr: there is none.
const Step* scope_at(const State& state, const Step& code, std::string_view position) {
  return state.find_step(state.request_step_id(code, position, NodeKind::scope));
}

}  // namespace

bool has_request_at(const State& state, const Step& code, std::string_view position) {
  constexpr NodeKind kKinds[] = {NodeKind::tool, NodeKind::llm, NodeKind::wait, NodeKind::scope};
  return is_ended_turn(*code.code, position) || std::ranges::any_of(kKinds, [&](NodeKind kind) {
           return state.find_step(state.request_step_id(code, position, kind)) != nullptr;
         });
}

bool is_in_ended_scope(const State& state, const Step& code, std::string_view position) {
  if (code.code->scopes == 0) return false;
  return any_scope_around(position, [&](std::string_view scope) {
    if (is_ended_turn(*code.code, scope)) return true;
    const Step* const known = scope_at(state, code, scope);
    return known != nullptr && known->phase == StepPhase::done;
  });
}

bool is_inside(std::string_view position, std::string_view scope) {
  return position.size() > scope.size() && position.starts_with(scope) &&
         position[scope.size()] == '/';
}

Delivery delivery_of(const State& state, const Step& request) {
  const CodeRequest& made = *request.request;
  Delivery delivery{.position = made.position,
                    .kind = made.kind,
                    .result = request.result,
                    .timed_out = request.timed_out,
                    .rejected = request.rejected,
                    .erased = request.erased};
  // A success that was delivered before it was durable stays one.
  const bool was_given = made.succeeded && state.tool_of(request).function;
  if (request.failure && !was_given) {
    delivery.failure = request.failure;
    delivery.result = Value();
  }
  return delivery;
}

namespace {

// Values are recorded once, and emitted ones have a name.
Status check_values(const Step& code, const Advance& advance) {
  std::unordered_set<std::string_view> names;
  for (const Advance::Item& item : advance.items) {
    if (const auto* value = std::get_if<Advance::NewValue>(&item)) {
      if (code.code->values.contains(value->name) || !names.insert(value->name).second) {
        return fail(Code::input_invalid, "the value \"{}\" was recorded before",
                    std::string_view(value->name).substr(0, 100));
      }
    } else if (const auto* one = std::get_if<Advance::Emitted>(&item)) {
      if (!is_request_name(one->name) || !(one->scope.empty() || is_position(one->scope))) {
        return fail(Code::input_invalid, "\"{}\" cannot be the name of an emitted value",
                    std::string_view(one->name).substr(0, 100));
      }
    }
  }
  return {};
}

// Does the order of delivery have a place for these?
Status check_order(const CodeProgress& code, const Advance& advance) {
  std::uint64_t outcomes = code.outcomes.size();
  std::uint64_t next = 0;  // positions below it are final
  for (const Advance::Item& item : advance.items) {
    std::uint64_t delivered = 0;
    if (const auto* begun = std::get_if<Advance::ScopeBegun>(&item)) {
      delivered = begun->delivered;
      next = std::max(next, delivered);
    } else if (const auto* ended = std::get_if<Advance::ScopeEnded>(&item)) {
      delivered = ended->delivered;
      const bool is_free = delivered >= code.outcomes.size() || code.outcomes.may_add(delivered);
      if (delivered < next || !is_free) {
        return fail(Code::input_invalid, "another outcome was delivered as number {}", delivered);
      }
      next = delivered + 1;
    }
    if (delivered > outcomes) {
      return fail(Code::input_invalid, "{} outcomes are counted; the log has {}", delivered,
                  outcomes);
    }
    outcomes += std::holds_alternative<Advance::ScopeEnded>(item) ? 1 : 0;
  }
  return {};
}

// May the scopes of this advance begin and end so, one after the other?
class ScopeOrder {
 public:
  ScopeOrder(const State& state, const Step& code) : state_(state), code_(code) {}

  bool begin(const Advance::ScopeBegun& scope) {
    const std::string_view position = scope.position;
    return is_position(position) && !has_request_at(state_, code_, position) &&
           (!scope.is_turn || is_next_turn(position)) && !is_in_ended(position) &&
           begun_.insert(position).second && (!scope.is_turn || turns_.insert(position).second);
  }

  // May code still record a value at this position, or emit one?
  bool is_open_at(std::string_view position) const { return !is_in_ended(position); }

  bool end(std::string_view position) {
    const Step* const known = scope_at(state_, code_, position);
    bool possible =
        begun_.contains(position) || (known != nullptr && known->phase == StepPhase::running);
    if (known != nullptr) {
      for_each_inside(state_, *known, [&](std::uint32_t index) {
        const CodeRequest& inner = *state_.steps[index].request;
        possible = possible && (inner.ended || ended_.contains(inner.position));
      });
    }
    for (const std::string_view inner : begun_) {
      possible = possible && (!is_inside(inner, position) || ended_.contains(inner));
    }
    if (!possible || !ended_.insert(position).second) return false;
    if (known != nullptr && known->request->kind == NodeKind::turn) turns_.insert(position);
    return true;
  }

 private:
  bool is_in_ended(std::string_view position) const {
    return is_in_ended_scope(state_, code_, position) ||
           any_scope_around(position,
                            [&](std::string_view scope) { return ended_.contains(scope); });
  }

  // Its loop has no open turn, and as many that ended as its number.
  bool is_next_turn(std::string_view position) const {
    const auto turn = turn_at(position);
    if (!turn) return false;
    const auto loop = code_.code->loops.find(turn->loop);
    const std::uint64_t ended = loop == code_.code->loops.end() ? 0 : loop->second.ended;
    if (turn->number == ended) return true;
    const std::string before = fmt::format("{}/{}", turn->loop, turn->number - 1);
    return turn->number > ended && ended_.contains(before) && turns_.contains(before);
  }

  const State& state_;
  const Step& code_;
  std::unordered_set<std::string_view> begun_, ended_, turns_;  // by this advance
};

Status check_scopes(const State& state, const Step& code, const Advance& advance) {
  ScopeOrder order(state, code);
  for (const Advance::Item& item : advance.items) {
    if (const auto* begun = std::get_if<Advance::ScopeBegun>(&item)) {
      if (!order.begin(*begun)) {
        return fail(Code::input_invalid, "the scope \"{}\" cannot begin here", begun->position);
      }
    } else if (const auto* end = std::get_if<Advance::ScopeEnded>(&item)) {
      if (!order.end(end->position)) {
        return fail(Code::input_invalid, "the scope \"{}\" cannot end here", end->position);
      }
    } else if (const auto* value = std::get_if<Advance::NewValue>(&item)) {
      if (!order.is_open_at(scope_of_value(value->name))) {
        return fail(Code::input_invalid, "the scope of the value \"{}\" has ended", value->name);
      }
    } else if (const auto* one = std::get_if<Advance::Emitted>(&item)) {
      if (!order.is_open_at(one->scope + '/')) {
        return fail(Code::input_invalid, "the scope \"{}\" has ended", one->scope);
      }
    }
  }
  return {};
}

}  // namespace

Result<std::vector<EventBody>> record_advance(const State& state, const Step& code,
                                              const Advance& advance) {
  AE_TRY(check_values(code, advance));
  AE_TRY(check_order(*code.code, advance));
  AE_TRY(check_scopes(state, code, advance));
  const std::string& node = state.node_of(code).id;
  std::uint64_t outcomes = code.code->outcomes.size();
  std::map<std::string, std::uint64_t> emitted;
  std::vector<EventBody> events;
  const auto position_or_absent = [&](std::uint64_t delivered) {
    return delivered == outcomes ? std::nullopt
                                 : std::optional(static_cast<std::int64_t>(delivered));
  };
  for (const Advance::Item& item : advance.items) {
    if (const auto* value = std::get_if<Advance::NewValue>(&item)) {
      AE_ASSIGN(EventBody event, recorded_value_event(state, code, *value));
      events.push_back(std::move(event));
    } else if (const auto* begun = std::get_if<Advance::ScopeBegun>(&item)) {
      events.emplace_back(
          NodeStarted{.delivered = position_or_absent(begun->delivered),
                      .kind = to_text(begun->is_turn ? NodeKind::turn : NodeKind::scope),
                      .node_id = node,
                      .position = begun->position,
                      .step_id = state.request_step_id(code, begun->position, NodeKind::scope),
                      .try_no = 1});
    } else if (const auto* ended = std::get_if<Advance::ScopeEnded>(&item)) {
      if (canonical_exceeds(ended->result, kValueMax)) return too_large_result();
      NodeFinished finished{
          .delivered = position_or_absent(ended->delivered),
          .node_id = node,
          .result_type = ended->failure ? "permanent_failure" : "pure",
          .step_id = state.request_step_id(code, ended->position, NodeKind::scope),
          .try_no = 1};
      if (ended->failure) {
        finished.error = {{ended->failure->code, Value(ended->failure->message)}};
      } else {
        finished.result = ended->result;
      }
      outcomes++;
      events.emplace_back(std::move(finished));
    } else if (const auto* one = std::get_if<Advance::Emitted>(&item)) {
      if (canonical_exceeds(one->value, kEmittedMax)) return too_large_to_emit();
      const auto before = code.code->emitted.find(one->scope);
      auto [count, is_first] =
          emitted.try_emplace(one->scope, before == code.code->emitted.end() ? 0 : before->second);
      count->second++;
      events.emplace_back(
          ValueEmitted{.node_id = node,
                       .published = one->is_published ? std::optional(true) : std::nullopt,
                       .scope = none_if_empty(one->scope),
                       .step_id = code.id,
                       .value = one->value,
                       .value_name = one->name,
                       .value_number = static_cast<std::int64_t>(count->second)});
    }
  }
  return events;
}

namespace {

RecordedRequest recorded_request(const State& state, const Step& step) {
  const CodeRequest& request = *step.request;
  const bool calls = request.kind == NodeKind::tool || request.kind == NodeKind::llm;
  return {.position = request.position,
          .kind = request.kind,
          .tool = calls ? state.plan->tools[step.tool].name : std::string(),
          .arguments_hash = request.arguments_hash,
          .wait = request.wait.type,
          .delivered = request.delivered};
}

// The end of the last turn that ended.
Delivery end_of(const std::string& position, const CodeLoop& loop) {
  return {.position = position,
          .kind = NodeKind::turn,
          .result = loop.result,
          .failure = loop.failure,
          .erased = loop.erased};
}

}  // namespace

std::uint64_t CodeRecord::outcomes() const {
  std::uint64_t count = 0;
  for (const Delivery& one : deliveries) count += std::max<std::uint64_t>(one.passed_over, 1);
  return count;
}

CodeRecord record_of(const State& state, const Step& code) {
  const CodeProgress& progress = *code.code;
  CodeRecord record{.values = progress.values, .emitted = progress.emitted};
  std::map<std::uint64_t, Delivery> given;  // by position
  for (const auto& [loop_position, loop] : progress.loops) {
    const std::string position = fmt::format("{}/{}", loop_position, loop.ended - 1);
    if (is_in_ended_scope(state, code, position)) continue;
    record.requests.push_back(
        {.position = position, .kind = NodeKind::turn, .delivered = loop.delivered});
    given.emplace(loop.position, end_of(position, loop));
  }
  for (std::uint32_t i = code.node; i < state.steps.size(); ++i) {
    const Step& step = state.steps[i];
    if (step.request && step.node == code.node && !step.request->folded) {
      record.requests.push_back(recorded_request(state, step));
    }
  }
  for (const OutcomeOrder::Place& place : progress.outcomes.places()) {
    given.emplace(place.position, delivery_of(state, state.steps[place.step]));
  }
  std::uint64_t next = 0;
  const auto pass_over = [&](std::uint64_t up_to) {
    if (up_to > next) record.deliveries.push_back({.passed_over = up_to - next});
    next = up_to;
  };
  for (auto& [position, delivery] : given) {
    pass_over(position);
    record.deliveries.push_back(std::move(delivery));
    next++;
  }
  pass_over(progress.outcomes.size());
  return record;
}

}  // namespace ae::engine
