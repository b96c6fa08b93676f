// ExternalWorld: the services, the network to them, and the journal.
#include "sim/external_world.h"

#include <fmt/core.h>

#include <algorithm>
#include <iterator>
#include <string>
#include <utility>

#include "base/hash.h"
#include "json/json.h"
#include "log/field_names.h"
#include "sim/echo_model.h"

namespace ae::sim {

using namespace std::chrono_literals;

struct ExternalWorld::PendingCall {
  const ToolKind* kind = nullptr;
  tools::Call call;
  async::Done<Outcome> done;
  std::shared_ptr<SimProcess> process;
  Instant permitted_at;  // by the loop: when the permit was given
  bool sent = false, is_answered = false;
  std::optional<async::TimerId> timeout;
  std::function<void()> remove_from_tool;  // removes it from the tool's list

  // At most once, and never if the caller's process is dead.
  void answer(Outcome outcome) {
    if (is_answered || process->dead) return;
    is_answered = true;
    if (timeout) process->cancel(*std::exchange(timeout, std::nullopt));
    async::Done<Outcome> deliver = std::move(done);
    remove_from_tool();
    deliver(std::move(outcome));
  }
};

class SimTool final : public tools::Tool {
 public:
  SimTool(ExternalWorld& external_world, const ToolKind& kind, std::shared_ptr<SimProcess> process)
      : external_world_(external_world), kind_(kind), process_(std::move(process)) {}

  void perform(tools::Permit permit, tools::Call call, async::Done<Outcome> done) override {
    std::move(permit).consume(call.invocation, call.try_no);
    auto call_in_flight = std::make_shared<ExternalWorld::PendingCall>();
    const std::pair<std::string, std::uint32_t> name(call.invocation.text, call.try_no);
    call_in_flight->kind = &kind_;
    call_in_flight->call = std::move(call);
    call_in_flight->done = std::move(done);
    call_in_flight->process = process_;
    call_in_flight->permitted_at = external_world_.host_.loop.now();
    call_in_flight->remove_from_tool = [this, name] { calls_in_flight_.erase(name); };
    calls_in_flight_[name] = call_in_flight;
    const Duration before = external_world_.host_.random.between(0ms, 40ms);
    process_->after(before, [&external_world = external_world_, call_in_flight] {
      external_world.send(call_in_flight);
    });
  }
  void abandon(const InvocationId& invocation, std::uint32_t try_no) override {
    const auto it = calls_in_flight_.find({invocation.text, try_no});
    if (it == calls_in_flight_.end()) return;
    const std::shared_ptr<ExternalWorld::PendingCall> call_in_flight = it->second;
    const bool sent = call_in_flight->sent;
    process_->post([call_in_flight, sent] {
      call_in_flight->answer(sent ? Outcome{.kind = OutcomeKind::unknown,
                                            .error_code = "killed",
                                            .error_message = "cut off"}
                                  : Outcome{.kind = OutcomeKind::failure,
                                            .definite = true,
                                            .retryable = true,
                                            .error_code = "not_sent",
                                            .error_message = "withdrawn"});
    });
    if (!sent) call_in_flight->sent = true;  // it is never sent
  }

 private:
  ExternalWorld& external_world_;
  const ToolKind& kind_;
  std::shared_ptr<SimProcess> process_;
  std::map<std::pair<std::string, std::uint32_t>, std::shared_ptr<ExternalWorld::PendingCall>>
      calls_in_flight_;
};

// A verifier of one process.
class SimVerifier final : public tools::Verifier {
 public:
  SimVerifier(ExternalWorld& external_world, std::shared_ptr<SimProcess> process)
      : external_world_(external_world), process_(std::move(process)) {}

  void check(Value change, async::Done<CheckResult> done) override {
    const Duration before = external_world_.host_.random.between(1ms, 20ms);
    process_->after(before, [this, change = std::move(change), done = std::move(done)]() mutable {
      if (!external_world_.host_.at_boundary(*process_, "verifier.check")) return;
      CheckResult result = external_world_.check_resource(change);
      process_->after(external_world_.host_.random.between(1ms, 20ms),
                      [this, result = std::move(result), done = std::move(done)]() mutable {
                        if (!external_world_.host_.at_boundary(*process_, "verifier.answers"))
                          return;
                        done(std::move(result));
                      });
    });
  }

 private:
  ExternalWorld& external_world_;
  std::shared_ptr<SimProcess> process_;
};

std::unique_ptr<tools::Verifier> ExternalWorld::verifier(const ToolKind& kind,
                                                         std::shared_ptr<SimProcess> process) {
  if (!kind.verified()) return nullptr;
  return std::make_unique<SimVerifier>(*this, std::move(process));
}

CheckResult ExternalWorld::check_resource(const Value& change) {
  const std::string id(change.text("id"));
  const std::string expected(change.text(field::version));
  const JobId job(id.substr(0, id.find('/')));
  Resource& resource = resources_[id];
  if (has_mutating_verifiers_) resource.version++;
  VerifierCheck check{.job = job,
                      .resource = id,
                      .expected = expected,
                      .actual_version = {},
                      .reported_verdict = {}};
  check.actual_version = std::to_string(resource.version);
  check.reported_verdict = are_verifiers_unreachable_ || host_.random.one_in(odds_.unreachable)
                               ? CheckVerdict::unreachable
                           : has_always_matching_verifiers_ || expected == check.actual_version
                               ? CheckVerdict::match
                               : CheckVerdict::mismatch;
  host_.report.mark(fmt::format("verifier.{}", to_text(check.reported_verdict)));
  verifier_checks_.push_back(check);
  const auto change_made =
      std::ranges::find_if(resource.applied_changes, [&](const Resource::AppliedChange& one) {
        return std::to_string(one.version) == expected && one.job == job;
      });
  const DeclaredCall* declared_call =
      change_made == resource.applied_changes.end()
          ? nullptr
          : host_.observer.declared_call(change_made->invocation, change_made->try_no);
  if (!declared_call) {
    host_.report.violate("V1 a verifier is called only for changes of the job, after a recovery",
                         job, fmt::format("{} {} was not made by a call of the job", id, expected));
  } else if (const auto observed = host_.observer.jobs().find(job);
             observed == host_.observer.jobs().end() ||
             observed->second.epoch <= declared_call->epoch) {
    host_.report.violate("V1 a verifier is called only for changes of the job, after a recovery",
                         job, fmt::format("{} is verified by the attempt that changed it", id));
  }
  if (check.reported_verdict == CheckVerdict::unreachable) {
    return {.verdict = check.reported_verdict,
            .expected = {},
            .observed = {},
            .reason = "connection refused"};
  }
  return {
      .verdict = check.reported_verdict,
      .expected = expected,
      .observed = check.reported_verdict == CheckVerdict::match ? expected : check.actual_version,
      .reason = {}};
}

bool ExternalWorld::mutate(std::string_view name) {
  auto it = resources_.find(name);
  if (name.empty() && !resources_.empty()) {
    it = std::next(resources_.begin(),
                   static_cast<std::ptrdiff_t>(host_.random.below(resources_.size())));
  }
  if (it == resources_.end()) return false;
  it->second.version++;
  it->second.foreign_changes++;
  host_.report.mark("resource.changed_externally");
  return true;
}

std::unique_ptr<tools::Tool> ExternalWorld::tool(const ToolKind& kind,
                                                 std::shared_ptr<SimProcess> process) {
  return std::make_unique<SimTool>(*this, kind, std::move(process));
}

const KeyRecord* ExternalWorld::find(const std::string& idempotency_key) const {
  const auto it = journal_.find(idempotency_key);
  return it == journal_.end() ? nullptr : &it->second;
}

ExternalWorld::DeliveryOutcome ExternalWorld::draw_outcome(const PendingCall& call_in_flight,
                                                           const KeyRecord& record) {
  static constexpr std::pair<std::string_view, DeliveryOutcome> kNames[] = {
      {"ok", DeliveryOutcome::ok},
      {"refused", DeliveryOutcome::refused},
      {"denied", DeliveryOutcome::denied},
      {"down", DeliveryOutcome::down},
      {"down_after", DeliveryOutcome::down_after},
      {"lost", DeliveryOutcome::lost},
      {"silent", DeliveryOutcome::silent},
      {field::late, DeliveryOutcome::late},
      {"slow", DeliveryOutcome::slow},
      {"fault", DeliveryOutcome::fault},
      {"broken", DeliveryOutcome::broken},
      {"busy", DeliveryOutcome::busy}};
  const bool model = !call_in_flight.kind->provider.empty();
  Value outcome_plan = call_in_flight.call.args["fate"];
  if (const Value& messages = call_in_flight.call.args["messages"]; model && messages.size() > 1) {
    outcome_plan = parse_json(messages.items()[0].text("content")).value_or(Value());
    const bool script = !outcome_plan.is_array() ||
                        (outcome_plan.size() > 0 && !outcome_plan.items()[0].is_string());
    if (script) outcome_plan = Value();
  }
  if (outcome_plan.size() > 0) {
    const std::size_t nth = std::min<std::size_t>(record.sends, outcome_plan.size()) - 1;
    for (const auto& [name, outcome] : kNames) {
      if (outcome_plan.items()[nth].is_string() && outcome_plan.items()[nth].as_string() == name)
        return outcome;
    }
    return DeliveryOutcome::ok;
  }
  const std::pair<std::uint64_t, DeliveryOutcome> odds[] = {
      {odds_.refused, DeliveryOutcome::refused},
      {odds_.denied, DeliveryOutcome::denied},
      {odds_.down, DeliveryOutcome::down},
      {odds_.lost, DeliveryOutcome::lost},
      {odds_.down_after, DeliveryOutcome::down_after},
      {odds_.silent, DeliveryOutcome::silent},
      {odds_.late, DeliveryOutcome::late},
      {odds_.slow, DeliveryOutcome::slow},
      {odds_.fault, DeliveryOutcome::fault},
      {odds_.broken, DeliveryOutcome::broken},
      {model ? odds_.busy : 0, DeliveryOutcome::busy}};
  for (const auto& [one_in, outcome] : odds) {
    if (host_.random.one_in(one_in)) return outcome;
  }
  return DeliveryOutcome::ok;
}

namespace {

// The numbers in the budget notice that a model receives, "budget: 1 of 2 tool calls left; … . Come
// to an end …"; null if there is none.
Value notice_in(const Value& messages) {
  const std::string_view begin = "budget: ", end = ". Come to an end before it is used up.";
  std::string_view text = messages.items().back().text("content");
  if (!text.starts_with(begin) || !text.ends_with(end)) return {};
  text = text.substr(begin.size(), text.size() - begin.size() - end.size());
  std::vector<Member> limits;
  while (!text.empty()) {
    const std::string_view one = text.substr(0, text.find("; "));
    text.remove_prefix(std::min(text.size(), one.size() + 2));
    const auto of = one.find(" of "), name = one.find(' ', of + 4);
    std::string limit(
        one.substr(name + 1, one.size() - name - 1 - std::string_view(" left").size()));
    std::ranges::replace(limit, ' ', '_');
    limits.emplace_back(limit, Value::object({{"left", one.substr(0, of)},
                                              {field::of, one.substr(of + 4, name - of - 4)}}));
  }
  return Value::object(std::move(limits));
}

// The message of a user that begins an exchange of a thread: the only one after an answer without
// calls that is neither a repair message nor a budget notice. null = none.
Value thread_message_in(const Value& messages) {
  const auto all = messages.items();
  std::size_t next_to_last = 0;
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (all[i].text("role") == "assistant") next_to_last = i + 1;
  }
  if (next_to_last == 0 || next_to_last == all.size()) return {};
  const Value& next = all[next_to_last];
  const std::string_view text = next.text("content");
  const bool is_ours =
      text.starts_with("This answer cannot be used") || text.starts_with("budget: ");
  return next.text("role") == "user" && !is_ours ? next : Value();
}

// Finds the declared hash of a loop's turn from the sent request, independently of the engine. The
// messages become the last link of a hash chain and a count, tools and schema their digests, and the
// budget notice its numbers.
class DeclaredTurn {
 public:
  DeclaredTurn(const Value& request, const DeclaredCall& declared)
      : request_(request), messages_(request["messages"]), declared_(declared) {
    std::string chain = from_hex(to_hex(sha256("aetheris.conversation.v1"))).value();
    for (const Value& message : messages_.items()) {
      chain += from_hex(digest(message)).value();
      chain = from_hex(to_hex(sha256(chain))).value();
    }
    chain_ = to_hex(chain);
  }

  bool matches() const {
    const bool first = std::ranges::none_of(messages_.items(), [](const Value& message) {
      return message.text("role") == "assistant";
    });
    const Value message = thread_message_in(messages_);
    const Value added = message.is_null() ? Value() : Value::array({message});
    return is(first ? messages_ : added, {}) || begins_later(added) || summarizes();
  }

 private:
  static constexpr std::uint64_t kTurnsMax = 32;  // of the loops of the simulation
  static std::string digest(const Value& value) { return to_hex(sha256(canonical(value))); }

  // Does it leave earlier turns out, with a summary or without?
  bool begins_later(const Value& added) const {
    const std::string_view begin = "Summary of the conversation before this point:\n\n";
    std::vector<Member> summary;
    for (const Value& message : messages_.items()) {
      const std::string_view text = message.text("content");
      if (text.starts_with(begin)) summary = {{"summary", text.substr(begin.size())}};
    }
    const bool has_notice = !notice_in(messages_).is_null();
    const auto all = messages_.items();
    const std::size_t last = all.size() - (has_notice && all.size() > 1 ? 2 : 1);
    const Value newest = Value::array({all[last]});
    for (std::uint64_t from = 1; from < kTurnsMax; ++from) {
      std::vector<Member> members = summary;
      members.emplace_back("from", from);
      if (is(Value(), members) || is(added, members) || is(newest, members)) return true;
    }
    return false;
  }
  bool summarizes() const {
    for (std::uint64_t from = 1; from < kTurnsMax; ++from) {
      if (is(Value(), {{"summarizes", from}})) return true;
    }
    return false;
  }

  // `added`: the messages that the declaration has itself.
  bool is(const Value& added, std::vector<Member> members) const {
    members.emplace_back("conversation", chain_);
    members.emplace_back("said", static_cast<std::uint64_t>(messages_.size()));
    if (Value notice = notice_in(messages_); !notice.is_null()) {
      members.emplace_back("notice", std::move(notice));
    }
    if (!added.is_null()) members.emplace_back("messages", added);
    for (const Member& member : request_.members()) {
      // Whether an answer is repaired is part of the plan, not of the declaration.
      if (member.first == "messages" || member.first == "repair") continue;
      const bool is_long = member.first == "tools" || member.first == "schema";
      members.emplace_back(member.first, is_long ? Value(digest(member.second)) : member.second);
    }
    const Value arguments = Value::object(std::move(members));
    return declared_.arguments_hash == blinded_hash(declared_.blind, canonical(arguments));
  }

  const Value &request_, &messages_;
  const DeclaredCall& declared_;
  std::string chain_;
};

// True if the request is the declared one.
bool is_declared(const Value& sent, const DeclaredCall& declared_call) {
  if (declared_call.arguments_hash == blinded_hash(declared_call.blind, canonical(sent)))
    return true;
  const Value& messages = sent["messages"];
  if (!messages.is_array() || messages.size() == 0) return false;
  return DeclaredTurn(sent, declared_call).matches();
}

}  // namespace

// Checks the rules for sending a request.
void ExternalWorld::check_send(const PendingCall& call_in_flight) {
  const tools::Call& call = call_in_flight.call;
  const DeclaredCall* declared_call = host_.observer.declared_call(call.invocation, call.try_no);
  if (!declared_call) {
    host_.report.violate("A6 no request is sent before its declaration is durable", call.job,
                         fmt::format("{} {}", call.tool, call.invocation.text));
    return;
  }
  if (!is_declared(call.args, *declared_call) ||
      declared_call->external_key != call.external_key.text ||
      declared_call->idempotency_key != call.key.text) {
    host_.report.violate("A6 a sent request equals the declared one", call.job,
                         fmt::format("{} {}", call.tool, call.invocation.text));
  }
  // Skipped after a jump of the clock: send_by is by the store's clock.
  if (!host_.clock.jumped() && host_.loop.now() > declared_call->send_by) {
    host_.report.violate("F3 no request is sent after send_by", call.job,
                         fmt::format("{} was sent at {}, send_by is {}", call.tool,
                                     to_text(host_.loop.now()), to_text(declared_call->send_by)));
  }
  if (!call_in_flight.kind->provider.empty()) check_model_request(call_in_flight, *declared_call);
  if (host_.has_lost_job(declared_call->attempt)) {
    host_.report.violate("F4 a worker that was notified of a lost lease sends nothing", call.job,
                         fmt::format("{} by {}", call.tool, declared_call->attempt.text));
  }
}

// A model is called again only if its answer was lost.
void ExternalWorld::check_model_request(const PendingCall& call_in_flight,
                                        const DeclaredCall& declared_call) {
  constexpr std::string_view kRule =
      "M1 a recorded model answer is replayed, never requested again";
  const tools::Call& call = call_in_flight.call;
  const std::string what = fmt::format("{} try {}", call.invocation.text, call.try_no);
  if (host_.observer.was_answered_before(declared_call, call.invocation)) {
    host_.report.violate(kRule, call.job,
                         fmt::format("{} is requested though an answer was recorded", what));
  }
  const auto receiver = answer_receivers_.find(call.invocation.text);
  if (receiver != answer_receivers_.end() && receiver->second == declared_call.attempt) {
    host_.report.violate(
        kRule, call.job,
        fmt::format("{} is requested by the attempt that received an answer", what));
  }
  if (call.try_no > 1) host_.report.mark("model.retried");
}

void ExternalWorld::send(std::shared_ptr<PendingCall> call_in_flight) {
  if (call_in_flight->is_answered || call_in_flight->sent) return;  // cancelled
  const tools::Call& call = call_in_flight->call;
  if (host_.loop.now() - call_in_flight->permitted_at > call.send_within) {
    return call_in_flight->answer({.kind = OutcomeKind::failure,
                                   .definite = true,
                                   .retryable = true,
                                   .error_code = "not_sent",
                                   .error_message = "its time had passed"});
  }
  if (!host_.at_boundary(*call_in_flight->process, "tool.send")) return;
  check_send(*call_in_flight);
  call_in_flight->sent = true;
  KeyRecord& record = journal_[call.key.text];
  record.job = call.job;
  record.effect_class = call_in_flight->kind->effect_class;
  record.tool = call.tool;
  record.sends++;
  record.external_keys.insert(call.external_key.text);
  const DeliveryOutcome what = draw_outcome(*call_in_flight, record);
  if (what == DeliveryOutcome::refused) {
    call_in_flight->process->after(host_.random.between(0ms, 20ms), [call_in_flight] {
      call_in_flight->answer({.kind = OutcomeKind::failure,
                              .definite = true,
                              .retryable = true,
                              .error_code = "connect",
                              .error_message = "refused"});
    });
    return;
  }
  call_in_flight->timeout = call_in_flight->process->after(call.timeout, [call_in_flight] {
    call_in_flight->timeout.reset();
    call_in_flight->answer({.kind = OutcomeKind::timeout,
                            .retryable = true,
                            .error_code = "timeout",
                            .error_message = "no answer"});
  });
  if (what == DeliveryOutcome::lost) return;
  // If a probe may come before the grace period is over, nothing may arrive after it.
  const bool probed = !call_in_flight->kind->probe.empty() && !host_.grace_binds;
  const Duration transit_time =
      probed                          ? 0ms
      : what == DeliveryOutcome::late ? call.timeout + host_.random.between(0ms, kToolGrace / 2)
      : what == DeliveryOutcome::slow ? host_.random.between(30ms, kSlowMax)
                                      : host_.random.between(1ms, 30ms);
  record.in_transit++;
  host_.loop.after(transit_time,
                   [this, call_in_flight, what] { arrive(call_in_flight, what, true); });
  const bool again = duplicates_model_requests_ && !call_in_flight->kind->provider.empty();
  if (again || (duplicate_ && call_in_flight->kind->effect_class == EffectClass::at_most_once)) {
    host_.loop.after(transit_time, [this, call_in_flight] {
      arrive(call_in_flight, DeliveryOutcome::silent, false);
    });
  }
}

namespace {

bool has_yes(const Value& inputs) {
  return inputs["answers"][kQuestion].text("action") == "accept";
}

}  // namespace

// Without an accepted answer, asks its question, or declines. There is no effect.
void ExternalWorld::ask_or_decline(const std::shared_ptr<PendingCall>& call_in_flight) {
  if (!call_in_flight->call.inputs.is_null()) {
    host_.report.mark("question.declined");
    return respond(call_in_flight, {.kind = OutcomeKind::failure,
                                    .definite = true,
                                    .error_code = "declined",
                                    .error_message = "declined by the user"});
  }
  host_.report.mark("question.opened");
  respond(
      call_in_flight,
      {.kind = OutcomeKind::input_required,
       .definite = true,
       .result = Value::object({{"requests", Value::object({{std::string(kQuestion), question()}})},
                                {field::state, call_in_flight->call.key.text.substr(0, 8)}}),
       .elapsed = 1ms});
}

void ExternalWorld::arrive(const std::shared_ptr<PendingCall>& call_in_flight,
                           DeliveryOutcome outcome, bool last) {
  const tools::Call& call = call_in_flight->call;
  KeyRecord& record = journal_[call.key.text];
  if (last) record.in_transit--;
  const bool is_model = !call_in_flight->kind->provider.empty();
  Arrival arrival{.job = call.job,
                  .invocation = call.invocation,
                  .try_no = call.try_no,
                  .arguments_hash = to_hex(sha256(canonical(call.args))),
                  .inputs = call.inputs,
                  .messages = is_model ? call.args["messages"] : Value()};
  // A downstream that de-duplicates does so by the external key.
  bool had_effect = false;
  for (const Arrival& before : record.arrivals) had_effect = had_effect || before.effect;
  // An effect that has happened cannot be denied.
  const bool has_question = call_in_flight->kind->questions && !had_effect && !has_yes(call.inputs);
  const bool refuses = has_question || outcome == DeliveryOutcome::down ||
                       outcome == DeliveryOutcome::busy ||
                       (outcome == DeliveryOutcome::denied && !had_effect);
  arrival.refused = refuses;
  const bool repeats = call_in_flight->kind->effect_class != EffectClass::at_most_once &&
                       had_effect && record.external_keys.size() == 1;
  arrival.effect = !refuses && !repeats;
  if (call.tool == "seek") arrival.answer = probe_answer(call.args);
  if (is_model && !refuses) arrival.answer = answer_of_model(call.args);
  const Value model_answer = arrival.answer;
  if (!model_answer["text"].is_null())
    stream_deltas(call_in_flight, std::string(model_answer.text("text")));
  if (arrival.effect && call_in_flight->kind->effect_class != EffectClass::read) record.effects++;
  if (arrival.effect && record.result.is_null()) {
    record.result = take_effect(*call_in_flight);
    record.broken = outcome == DeliveryOutcome::broken;
  }
  record.arrivals.push_back(std::move(arrival));
  if (call_in_flight->process->dead ? false
                                    : !host_.at_boundary(*call_in_flight->process, "tool.effect"))
    return;
  const bool responds = outcome == DeliveryOutcome::ok || outcome == DeliveryOutcome::late ||
                        outcome == DeliveryOutcome::slow || outcome == DeliveryOutcome::broken;
  if (has_question && responds) return ask_or_decline(call_in_flight);
  const auto problem = [&](OutcomeKind kind, bool definite, bool retryable, std::string_view code) {
    respond(call_in_flight, {.kind = kind,
                             .definite = definite,
                             .retryable = retryable,
                             .error_code = std::string(code),
                             .error_message = "said the service"});
  };
  const auto broken = [&] {
    respond(call_in_flight, {.kind = OutcomeKind::success,
                             .invalid = Value::object({{"invalid", true}, {"size", 3}}),
                             .elapsed = 1ms});
  };
  switch (outcome) {
    case DeliveryOutcome::denied:
      if (had_effect) break;
      return problem(OutcomeKind::failure, true, false, "http_422");
    case DeliveryOutcome::down:
    case DeliveryOutcome::down_after:
      return problem(OutcomeKind::unknown, false, true, "http_503");
    case DeliveryOutcome::fault:
      host_.report.mark("call.settled_by_500");
      return respond(call_in_flight, {.kind = OutcomeKind::unknown,
                                      .retryable = true,
                                      .settled = true,
                                      .error_code = "http_500",
                                      .error_message = "said the service"});
    case DeliveryOutcome::silent:
      return;
    case DeliveryOutcome::busy:
      host_.report.mark("model.busy");
      return respond(call_in_flight, {.kind = OutcomeKind::failure,
                                      .definite = true,
                                      .retryable = true,
                                      .error_code = "http_429",
                                      .error_message = "said the model",
                                      .retry_after = host_.random.between(100ms, 3s)});
    case DeliveryOutcome::broken:
      return broken();
    default:
      break;
  }
  if (record.broken) return broken();
  respond(call_in_flight, {.kind = OutcomeKind::success,
                           .result = model_answer.is_null() ? record.result : model_answer,
                           .elapsed = 1ms});
}

// Applies the effect of a call and returns its result.
Value ExternalWorld::take_effect(const PendingCall& call_in_flight) {
  const tools::Call& call = call_in_flight.call;
  std::vector<Member> result{{"args", call.args}, {"tool", call.tool}};
  if (const Value* answer = call.inputs["answers"].find(kQuestion))
    result.emplace_back("said", *answer);
  if (!call_in_flight.kind->changes.empty()) {
    Resource& resource = resources_[std::string(call.args.text("thing"))];
    resource.applied_changes.push_back(
        {++resource.version, call.job, call.invocation, call.try_no});
    result.emplace_back(field::version, resource.version);
  }
  return Value::object(std::move(result));
}

Value ExternalWorld::answer_of_model(const Value& request) {
  const Value answer = echo_answer(request, ++answers_);
  if (answer["tool_calls"].size() > 0) host_.report.mark("loop.requested_tools");
  if (is_repair(request)) host_.report.mark("model.repair_requested");
  return answer;
}

// The answer of a probe about the call that it names.
Value ExternalWorld::probe_answer(const Value& args) const {
  const KeyRecord* requested = has_false_probes_ ? nullptr : find(std::string(args.text("key")));
  return Value::object(
      {{"found", requested && requested->effects > 0 ? requested->result : Value()},
       {"tool", "seek"}});
}

// An attempt that receives a model's answer must record it.
void ExternalWorld::note_receiver(const PendingCall& call_in_flight, const Outcome& outcome) {
  if (call_in_flight.is_answered || call_in_flight.kind->provider.empty() ||
      outcome.kind != OutcomeKind::success)
    return;
  const DeclaredCall* declared_call =
      host_.observer.declared_call(call_in_flight.call.invocation, call_in_flight.call.try_no);
  if (declared_call)
    answer_receivers_[call_in_flight.call.invocation.text] = declared_call->attempt;
}

// Streams the text deltas before the final answer. They are lost if the process dies or the answer
// is lost.
void ExternalWorld::stream_deltas(const std::shared_ptr<PendingCall>& call_in_flight,
                                  const std::string& text) {
  constexpr std::size_t kPieces = 3;
  const std::size_t size = text.size() / kPieces + 1;
  for (std::size_t i = 0; i < kPieces && i * size < text.size(); ++i) {
    host_.loop.after(i * 300us,
                     [this, call_in_flight, at = i * size, delta = text.substr(i * size, size)] {
                       if (call_in_flight->process->dead || call_in_flight->is_answered ||
                           !call_in_flight->call.on_text_delta)
                         return;
                       if (!host_.at_boundary(*call_in_flight->process, "model.delta"))
                         return host_.report.mark("death.while_streaming");
                       call_in_flight->process->post([this, call_in_flight, at, delta] {
                         if (call_in_flight->is_answered) return;
                         host_.report.mark("model.streamed");
                         call_in_flight->call.on_text_delta({.offset = at, .text = delta});
                       });
                     });
  }
}

void ExternalWorld::respond(const std::shared_ptr<PendingCall>& call_in_flight, Outcome outcome) {
  host_.loop.after(host_.random.between(1ms, 30ms), [this, call_in_flight,
                                                     outcome = std::move(outcome)]() mutable {
    if (call_in_flight->process->dead || call_in_flight->is_answered) return;
    if (!host_.at_boundary(*call_in_flight->process, "tool.answers")) return;
    call_in_flight->process->post([this, call_in_flight, outcome = std::move(outcome)]() mutable {
      note_receiver(*call_in_flight, outcome);
      call_in_flight->answer(std::move(outcome));
    });
  });
}

}  // namespace ae::sim
