// The services, the way to them, and the journal.
#include "sim/outside.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/hash.h"
#include "json/json.h"

namespace ae::sim {

using namespace std::chrono_literals;

const ToolKind* tool_kind(std::string_view name) {
  for (const ToolKind& kind : kTools) {
    if (kind.name == name) return &kind;
  }
  return nullptr;
}

bool asks(const ToolKind& kind, const Value& args) {
  return kind.approval == "required" || (!kind.approval.empty() && args["i"] != Value(0));
}

Value question() {
  const Value number =
      Value::object({{"default", 3}, {"maximum", 9}, {"minimum", 1}, {"type", "integer"}});
  return Value::object({{"message", "How many?"},
                        {"mode", "form"},
                        {"schema", Value::object({{"properties", Value::object({{"n", number}})},
                                                  {"required", Value::array({"n"})},
                                                  {"type", "object"}})}});
}

Value tool_policy(const ToolKind& kind) {
  static constexpr std::string_view kEffects[] = {"read", "idempotent", "at_most_once"};
  std::vector<Value> retry_on{"connect"};
  if (kind.nature != Nature::at_most_once) {
    retry_on.emplace_back("timeout");
    retry_on.emplace_back("5xx");
  }
  if (!kind.provider.empty()) retry_on.emplace_back("429");
  std::vector<Member> policy{
      {"dedupe_window", kind.dedupe_window},
      {"effect", kEffects[static_cast<int>(kind.nature)]},
      {"grace", to_text(kToolGrace)},
      {"on_in_doubt", kind.in_doubt},
      {"retry", Value::object({{"initial_backoff", "200ms"},
                               {"max_attempts", 3},
                               {"max_backoff", "8s"},
                               {"multiplier", 6},
                               {"retry_on", Value::array(std::move(retry_on))}})},
      {"timeout", to_text(kToolTimeout)},
      {"version", kToolVersion}};
  if (!kind.probe.empty()) {
    policy.emplace_back("probe",
                        Value::object({{"args", Value::object({{"key", "${ .call.key }"}})},
                                       {"happened", "${ .result.found }"},
                                       {"tool", kind.probe}}));
  }
  if (!kind.undo.empty()) {
    // A result that broke a rule has no `tool`: then a person undoes it.
    policy.emplace_back(
        "compensate",
        Value::object({{"args", Value::object({{"fate", "${ .args.undo_fate }"},
                                               {"of", "${ .call.key }"},
                                               {"was", "${ .result.tool | ascii_upcase }"}})},
                       {"tool", kind.undo}}));
  }
  if (!kind.provider.empty()) policy.emplace_back("provider", kind.provider);
  if (!kind.changes.empty()) {
    policy.emplace_back("changes",
                        Value::array({Value::object({{"id", "${ .args.thing }"},
                                                     {"op", "update"},
                                                     {"type", "thing"},
                                                     {"version", "${ .result.version }"}})}));
  }
  if (kind.verified()) {
    policy.emplace_back("verify", Value::object({{"by", "file"}, {"mode", kind.changes}}));
  }
  if (!kind.approval.empty()) policy.emplace_back("approval", kind.approval);
  if (!kind.approval_expires.empty()) {
    policy.emplace_back("approval_expires", kind.approval_expires);
  }
  return Value::object(std::move(policy));
}

struct Outside::Flight {
  const ToolKind* kind = nullptr;
  tools::Call call;
  async::Done<Outcome> done;
  std::shared_ptr<Life> life;
  Instant begun;  // by the loop: the permit was given
  bool sent = false, answered = false;
  std::optional<async::TimerId> timeout;
  std::function<void()> forget;  // from the tool's list

  // Once; and never when the caller's process is gone.
  void answer(Outcome outcome) {
    if (answered || life->dead) return;
    answered = true;
    if (timeout) life->forget(*std::exchange(timeout, std::nullopt));
    async::Done<Outcome> tell = std::move(done);
    forget();
    tell(std::move(outcome));
  }
};

class SimTool final : public tools::Tool {
 public:
  SimTool(Outside& outside, const ToolKind& kind, std::shared_ptr<Life> life)
      : outside_(outside), kind_(kind), life_(std::move(life)) {}

  void perform(tools::Permit permit, tools::Call call, async::Done<Outcome> done) override {
    std::move(permit).use(call.invocation, call.try_no);
    auto flight = std::make_shared<Outside::Flight>();
    const std::pair<std::string, std::uint32_t> name(call.invocation.text, call.try_no);
    flight->kind = &kind_;
    flight->call = std::move(call);
    flight->done = std::move(done);
    flight->life = life_;
    flight->begun = outside_.host_.loop.now();
    flight->forget = [this, name] { flights_.erase(name); };
    flights_[name] = flight;
    const Duration before = outside_.host_.chance.between(0ms, 40ms);
    life_->after(before, [&outside = outside_, flight] { outside.send(flight); });
  }
  void abandon(const InvocationId& invocation, std::uint32_t try_no) override {
    const auto it = flights_.find({invocation.text, try_no});
    if (it == flights_.end()) return;
    const std::shared_ptr<Outside::Flight> flight = it->second;
    const bool sent = flight->sent;
    life_->post([flight, sent] {
      flight->answer(sent ? Outcome{.kind = OutcomeKind::unknown,
                                    .error_code = "killed",
                                    .error_message = "cut off"}
                          : Outcome{.kind = OutcomeKind::failure,
                                    .definite = true,
                                    .retryable = true,
                                    .error_code = "not_sent",
                                    .error_message = "withdrawn"});
    });
    if (!sent) flight->sent = true;  // it never leaves
  }

 private:
  Outside& outside_;
  const ToolKind& kind_;
  std::shared_ptr<Life> life_;
  std::map<std::pair<std::string, std::uint32_t>, std::shared_ptr<Outside::Flight>> flights_;
};

// Looks through the eyes of one process.
class SimVerifier final : public tools::Verifier {
 public:
  SimVerifier(Outside& outside, std::shared_ptr<Life> life)
      : outside_(outside), life_(std::move(life)) {}

  void look(Value change, async::Done<Sighting> done) override {
    const Duration before = outside_.host_.chance.between(1ms, 20ms);
    life_->after(before, [this, change = std::move(change), done = std::move(done)]() mutable {
      if (!outside_.host_.boundary(*life_, "verifier.looks")) return;
      Sighting seen = outside_.look(change);
      life_->after(outside_.host_.chance.between(1ms, 20ms),
                   [this, seen = std::move(seen), done = std::move(done)]() mutable {
                     if (!outside_.host_.boundary(*life_, "verifier.answers")) return;
                     done(std::move(seen));
                   });
    });
  }

 private:
  Outside& outside_;
  std::shared_ptr<Life> life_;
};

std::unique_ptr<tools::Verifier> Outside::verifier(const ToolKind& kind,
                                                   std::shared_ptr<Life> life) {
  if (!kind.verified()) return nullptr;
  return std::make_unique<SimVerifier>(*this, std::move(life));
}

Sighting Outside::look(const Value& change) {
  const std::string id(change.text("id"));
  const std::string expected(change.text("version"));
  const JobId job(id.substr(0, id.find('/')));
  Thing& thing = things_[id];
  if (touches_) thing.version++;
  Look look{.job = job, .thing = id, .expected = expected, .there = {}, .said = {}};
  look.there = std::to_string(thing.version);
  look.said = blind_ || host_.chance.one_in(odds_.blind) ? Sight::unreachable
              : praises_ || expected == look.there       ? Sight::match
                                                         : Sight::mismatch;
  host_.report.mark("looked." + std::string(to_text(look.said)));
  looks_.push_back(look);
  const auto made = std::ranges::find_if(thing.made, [&](const Thing::Made& one) {
    return std::to_string(one.version) == expected && one.job == job;
  });
  const Intent* intent =
      made == thing.made.end() ? nullptr : host_.witness.intent(made->invocation, made->try_no);
  if (!intent) {
    host_.report.violate("V1 a verifier is asked about what the job has changed, after a recovery",
                         job, id + " " + expected + " is of no call of the job");
  } else if (const auto seen = host_.witness.jobs().find(job);
             seen == host_.witness.jobs().end() || seen->second.epoch <= intent->epoch) {
    host_.report.violate("V1 a verifier is asked about what the job has changed, after a recovery",
                         job, id + " is looked at by the attempt that changed it");
  }
  if (look.said == Sight::unreachable) {
    return {.sight = look.said, .expected = {}, .observed = {}, .reason = "nobody opens"};
  }
  return {.sight = look.said,
          .expected = expected,
          .observed = look.said == Sight::match ? expected : look.there,
          .reason = {}};
}

bool Outside::meddle(std::string_view name) {
  auto it = things_.find(name);
  if (name.empty() && !things_.empty()) {
    it =
        std::next(things_.begin(), static_cast<std::ptrdiff_t>(host_.chance.below(things_.size())));
  }
  if (it == things_.end()) return false;
  it->second.version++;
  it->second.strangers++;
  host_.report.mark("thing.meddled_with");
  return true;
}

std::unique_ptr<tools::Tool> Outside::tool(const ToolKind& kind, std::shared_ptr<Life> life) {
  return std::make_unique<SimTool>(*this, kind, std::move(life));
}

const KeyRecord* Outside::find(const std::string& idempotency_key) const {
  const auto it = journal_.find(idempotency_key);
  return it == journal_.end() ? nullptr : &it->second;
}

Outside::Fate Outside::fate(const Flight& flight, const KeyRecord& record) {
  static constexpr std::pair<std::string_view, Fate> kNames[] = {{"ok", Fate::ok},
                                                                 {"refused", Fate::refused},
                                                                 {"denied", Fate::denied},
                                                                 {"down", Fate::down},
                                                                 {"down_after", Fate::down_after},
                                                                 {"lost", Fate::lost},
                                                                 {"silent", Fate::silent},
                                                                 {"late", Fate::late},
                                                                 {"slow", Fate::slow},
                                                                 {"fault", Fate::fault},
                                                                 {"broken", Fate::broken},
                                                                 {"busy", Fate::busy}};
  const bool model = !flight.kind->provider.empty();
  Value fates = flight.call.args["fate"];
  if (const Value& messages = flight.call.args["messages"]; model && messages.size() > 1) {
    fates = parse_json(messages.items()[0].text("content")).value_or(Value());
    const bool script = !fates.is_array() || (fates.size() > 0 && !fates.items()[0].is_string());
    if (script) fates = Value();
  }
  if (fates.size() > 0) {
    const std::size_t nth = std::min<std::size_t>(record.sends, fates.size()) - 1;
    for (const auto& [name, fate] : kNames) {
      if (fates.items()[nth].is_string() && fates.items()[nth].as_string() == name) return fate;
    }
    return Fate::ok;
  }
  const std::pair<std::uint64_t, Fate> odds[] = {{odds_.refused, Fate::refused},
                                                 {odds_.denied, Fate::denied},
                                                 {odds_.down, Fate::down},
                                                 {odds_.lost, Fate::lost},
                                                 {odds_.down_after, Fate::down_after},
                                                 {odds_.silent, Fate::silent},
                                                 {odds_.late, Fate::late},
                                                 {odds_.slow, Fate::slow},
                                                 {odds_.fault, Fate::fault},
                                                 {odds_.broken, Fate::broken},
                                                 {model ? odds_.busy : 0, Fate::busy}};
  for (const auto& [one_in, fate] : odds) {
    if (host_.chance.one_in(one_in)) return fate;
  }
  return Fate::ok;
}

namespace {

// The numbers in what a model is told of its budget, "budget: 1 of 2 tool calls left; … . Come to an end …"; null: it is
// told of none.
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
                                              {"of", one.substr(of + 4, name - of - 4)}}));
  }
  return Value::object(std::move(limits));
}

// What a turn of a loop was declared with, from what is sent: said here a second time, for whoever judges. The messages
// become the end of a chain and a number, what is offered its digest, and what is told of the budget its numbers.
std::string declared_hash(const std::string& blind, const Value& request) {
  const auto digest = [](const Value& value) { return to_hex(sha256(canonical(value))); };
  const bool first = std::ranges::none_of(request["messages"].items(), [](const Value& message) {
    return message.text("role") == "assistant";
  });
  std::string chain = from_hex(to_hex(sha256("aetheris.conversation.v1"))).value();
  for (const Value& message : request["messages"].items()) {
    chain += from_hex(digest(message)).value();
    chain = from_hex(to_hex(sha256(chain))).value();
  }
  std::vector<Member> declared{{"conversation", to_hex(chain)},
                               {"said", static_cast<std::uint64_t>(request["messages"].size())}};
  if (Value notice = notice_in(request["messages"]); !notice.is_null()) {
    declared.emplace_back("notice", std::move(notice));
  }
  for (const Member& member : request.members()) {
    // That a wrong answer is mended stands in the plan.
    if ((member.first == "messages" && !first) || member.first == "repair") continue;
    const bool long_one = member.first == "tools" || member.first == "schema";
    declared.emplace_back(member.first, long_one ? Value(digest(member.second)) : member.second);
  }
  return blinded_hash(blind, canonical(Value::object(std::move(declared))));
}

// Is that what was declared?
bool is_declared(const Value& sent, const Intent& intent) {
  if (intent.arguments_hash == blinded_hash(intent.blind, canonical(sent))) return true;
  const Value& messages = sent["messages"];
  if (!messages.is_array() || messages.size() == 0) return false;
  return intent.arguments_hash == declared_hash(intent.blind, sent);
}

}  // namespace

// What must be so when a request leaves.
void Outside::check_send(const Flight& flight) {
  const tools::Call& call = flight.call;
  const Intent* intent = host_.witness.intent(call.invocation, call.try_no);
  if (!intent) {
    host_.report.violate("A6 nothing is sent before its declaration is durable", call.job,
                         call.tool + " " + call.invocation.text);
    return;
  }
  if (!is_declared(call.args, *intent) || intent->external_key != call.external_key.text ||
      intent->idempotency_key != call.key.text) {
    host_.report.violate("A6 what is sent is what was declared", call.job,
                         call.tool + " " + call.invocation.text);
  }
  // A clock that was set meanwhile proves nothing: send_by is the store's.
  if (!host_.clock.jumped() && host_.loop.now() > intent->send_by) {
    host_.report.violate("F3 nothing is sent after send_by", call.job,
                         call.tool + " left at " + to_text(host_.loop.now()) + ", send_by is " +
                             to_text(intent->send_by));
  }
  if (!flight.kind->provider.empty()) check_question(flight, *intent);
  if (host_.refused(intent->attempt)) {
    host_.report.violate("F4 who was told that the job is lost sends nothing more", call.job,
                         call.tool + " by " + intent->attempt.text);
  }
}

// A model is asked again only when its answer was lost.
void Outside::check_question(const Flight& flight, const Intent& intent) {
  constexpr std::string_view kRule = "M1 a model's answer is injected, never asked for again";
  const tools::Call& call = flight.call;
  const std::string what = call.invocation.text + " try " + std::to_string(call.try_no);
  if (host_.witness.answered_before(intent, call.invocation)) {
    host_.report.violate(kRule, call.job, what + " is asked though an answer was recorded");
  }
  const auto heard = heard_.find(call.invocation.text);
  if (heard != heard_.end() && heard->second == intent.attempt) {
    host_.report.violate(kRule, call.job, what + " is asked by the attempt that heard an answer");
  }
  if (call.try_no > 1) host_.report.mark("model.asked_again");
}

void Outside::send(std::shared_ptr<Flight> flight) {
  if (flight->answered || flight->sent) return;  // withdrawn
  const tools::Call& call = flight->call;
  if (host_.loop.now() - flight->begun > call.send_within) {
    return flight->answer({.kind = OutcomeKind::failure,
                           .definite = true,
                           .retryable = true,
                           .error_code = "not_sent",
                           .error_message = "its time had passed"});
  }
  if (!host_.boundary(*flight->life, "tool.leaves")) return;
  check_send(*flight);
  flight->sent = true;
  KeyRecord& record = journal_[call.key.text];
  record.job = call.job;
  record.nature = flight->kind->nature;
  record.tool = call.tool;
  record.sends++;
  record.external_keys.insert(call.external_key.text);
  const Fate what = fate(*flight, record);
  if (what == Fate::refused) {
    flight->life->after(host_.chance.between(0ms, 20ms), [flight] {
      flight->answer({.kind = OutcomeKind::failure,
                      .definite = true,
                      .retryable = true,
                      .error_code = "connect",
                      .error_message = "refused"});
    });
    return;
  }
  flight->timeout = flight->life->after(call.timeout, [flight] {
    flight->timeout.reset();
    flight->answer({.kind = OutcomeKind::timeout,
                    .retryable = true,
                    .error_code = "timeout",
                    .error_message = "no answer"});
  });
  if (what == Fate::lost) return;
  // Where a probe may be asked before the grace has passed, nothing arrives after it.
  const bool probed = !flight->kind->probe.empty() && !host_.grace_binds;
  const Duration on_its_way = probed ? 0ms
                              : what == Fate::late
                                  ? call.timeout + host_.chance.between(0ms, kToolGrace / 2)
                              : what == Fate::slow ? host_.chance.between(30ms, kSlowMax)
                                                   : host_.chance.between(1ms, 30ms);
  record.in_transit++;
  host_.loop.after(on_its_way, [this, flight, what] { arrive(flight, what, true); });
  const bool again = asks_twice_ && !flight->kind->provider.empty();
  if (again || (duplicate_ && flight->kind->nature == Nature::at_most_once)) {
    host_.loop.after(on_its_way, [this, flight] { arrive(flight, Fate::silent, false); });
  }
}

namespace {

bool has_yes(const Value& inputs) {
  return inputs["answers"][kQuestion].text("action") == "accept";
}

}  // namespace

// Nobody has said yes: it asks, or takes the no for one. Nothing is done.
void Outside::ask_or_decline(const std::shared_ptr<Flight>& flight) {
  if (!flight->call.inputs.is_null()) {
    host_.report.mark("question.declined");
    return respond(flight, {.kind = OutcomeKind::failure,
                            .definite = true,
                            .error_code = "declined",
                            .error_message = "nobody wants it"});
  }
  host_.report.mark("question.asked");
  respond(
      flight,
      {.kind = OutcomeKind::input_required,
       .definite = true,
       .result = Value::object({{"requests", Value::object({{std::string(kQuestion), question()}})},
                                {"state", flight->call.key.text.substr(0, 8)}}),
       .took = 1ms});
}

void Outside::arrive(const std::shared_ptr<Flight>& flight, Fate fate, bool last) {
  const tools::Call& call = flight->call;
  KeyRecord& record = journal_[call.key.text];
  if (last) record.in_transit--;
  Arrival arrival{.job = call.job,
                  .invocation = call.invocation,
                  .try_no = call.try_no,
                  .arguments_hash = to_hex(sha256(canonical(call.args))),
                  .inputs = call.inputs};
  // A downstream that de-duplicates does so on the external key.
  bool known = false;
  for (const Arrival& before : record.arrivals) known = known || before.effect;
  // What took effect before cannot be denied any more.
  const bool asks = flight->kind->questions && !known && !has_yes(call.inputs);
  const bool refuses =
      asks || fate == Fate::down || fate == Fate::busy || (fate == Fate::denied && !known);
  arrival.refused = refuses;
  const bool repeats =
      flight->kind->nature != Nature::at_most_once && known && record.external_keys.size() == 1;
  arrival.effect = !refuses && !repeats;
  if (call.tool == "seek") arrival.answer = found(call.args);
  if (!flight->kind->provider.empty() && !refuses) arrival.answer = answer_of_model(call.args);
  const Value told = arrival.answer;
  if (!told["text"].is_null()) speak(flight, std::string(told.text("text")));
  if (arrival.effect && flight->kind->nature != Nature::read) record.effects++;
  if (arrival.effect && record.result.is_null()) {
    record.result = take_effect(*flight);
    record.broken = fate == Fate::broken;
  }
  record.arrivals.push_back(std::move(arrival));
  if (flight->life->dead ? false : !host_.boundary(*flight->life, "tool.effect")) return;
  const bool speaks =
      fate == Fate::ok || fate == Fate::late || fate == Fate::slow || fate == Fate::broken;
  if (asks && speaks) return ask_or_decline(flight);
  const auto problem = [&](OutcomeKind kind, bool definite, bool retryable, std::string_view code) {
    respond(flight, {.kind = kind,
                     .definite = definite,
                     .retryable = retryable,
                     .error_code = std::string(code),
                     .error_message = "said the service"});
  };
  const auto broken = [&] {
    respond(flight, {.kind = OutcomeKind::success,
                     .invalid = Value::object({{"invalid", true}, {"size", 3}}),
                     .took = 1ms});
  };
  switch (fate) {
    case Fate::denied:
      if (known) break;
      return problem(OutcomeKind::failure, true, false, "http_422");
    case Fate::down:
    case Fate::down_after:
      return problem(OutcomeKind::unknown, false, true, "http_503");
    case Fate::fault:
      host_.report.mark("call.settled_by_500");
      return respond(flight, {.kind = OutcomeKind::unknown,
                              .retryable = true,
                              .settled = true,
                              .error_code = "http_500",
                              .error_message = "said the service"});
    case Fate::silent:
      return;
    case Fate::busy:
      host_.report.mark("model.busy");
      return respond(flight, {.kind = OutcomeKind::failure,
                              .definite = true,
                              .retryable = true,
                              .error_code = "http_429",
                              .error_message = "said the model",
                              .retry_after = host_.chance.between(100ms, 3s)});
    case Fate::broken:
      return broken();
    default:
      break;
  }
  if (record.broken) return broken();
  respond(
      flight,
      {.kind = OutcomeKind::success, .result = told.is_null() ? record.result : told, .took = 1ms});
}

// What a call does, and what it is told.
Value Outside::take_effect(const Flight& flight) {
  const tools::Call& call = flight.call;
  std::vector<Member> result{{"args", call.args}, {"tool", call.tool}};
  if (const Value* said = call.inputs["answers"].find(kQuestion))
    result.emplace_back("said", *said);
  if (!flight.kind->changes.empty()) {
    Thing& thing = things_[std::string(call.args.text("thing"))];
    thing.made.push_back({++thing.version, call.job, call.invocation, call.try_no});
    result.emplace_back("version", thing.version);
  }
  return Value::object(std::move(result));
}

// Its text follows from the question; its number does not: it is the mark by which an answer is known. Of a loop the first
// message is a script, [[{name, arguments}…]…]: what it asks for, turn by turn; its last text is a digest of all that was said.
Value Outside::answer_of_model(const Value& request) {
  const auto messages = request["messages"].items();
  std::string text = "re: " + std::string(messages.back().text("content"));
  std::vector<Value> calls;
  const auto script = parse_json(messages[0].text("content"));
  const auto turn = static_cast<std::size_t>(std::ranges::count_if(
      messages, [](const Value& m) { return m.text("role") == "assistant"; }));
  if (const Value said = script ? (*script)["says"] : Value(); said.size() > 0) {
    text = said.items()[std::min(turn, said.size() - 1)].as_string();
    if (turn > 0) host_.report.mark("model.asked_to_mend");
  }
  if (script && script->is_array() && request.find("tools") != nullptr) {
    if (turn < script->size()) {
      for (const Value& call : script->items()[turn].items()) {
        calls.push_back(call.with("id", "call-" + std::to_string(calls.size())));
      }
    }
    if (messages.size() > 1 || !calls.empty())
      text = to_hex(sha256(canonical(request["messages"])));
  }
  std::vector<Member> answer{
      {"finish_reason", calls.empty() ? "stop" : "tool_calls"},
      {"model", "echo-1"},
      {"number", ++answers_},
      {"text", text},
      {"usage", Value::object({{"input_tokens", 2}, {"output_tokens", 3}, {"total_tokens", 5}})}};
  if (!calls.empty()) {
    host_.report.mark("loop.asked_for_tools");
    answer.emplace_back("tool_calls", Value::array(std::move(calls)));
  }
  return Value::object(std::move(answer));
}

// What a probe is told of the call that it names.
Value Outside::found(const Value& args) const {
  const KeyRecord* asked = lies_ ? nullptr : find(std::string(args.text("key")));
  return Value::object(
      {{"found", asked && asked->effects > 0 ? asked->result : Value()}, {"tool", "seek"}});
}

// Whoever hears a model's answer is to keep it.
void Outside::hear(const Flight& flight, const Outcome& outcome) {
  if (flight.answered || flight.kind->provider.empty() || outcome.kind != OutcomeKind::success)
    return;
  const Intent* intent = host_.witness.intent(flight.call.invocation, flight.call.try_no);
  if (intent) heard_[flight.call.invocation.text] = intent->attempt;
}

// The words of an answer, before it. What was said when the process dies, or the answer is lost, is nobody's.
void Outside::speak(const std::shared_ptr<Flight>& flight, const std::string& text) {
  constexpr std::size_t kPieces = 3;
  const std::size_t size = text.size() / kPieces + 1;
  for (std::size_t i = 0; i < kPieces && i * size < text.size(); ++i) {
    host_.loop.after(i * 300us, [this, flight, at = i * size, words = text.substr(i * size, size)] {
      if (flight->life->dead || flight->answered || !flight->call.piece) return;
      if (!host_.boundary(*flight->life, "model.says"))
        return host_.report.mark("model.dies_saying");
      flight->life->post([this, flight, at, words] {
        if (flight->answered) return;
        host_.report.mark("model.said");
        flight->call.piece({.offset = at, .text = words});
      });
    });
  }
}

void Outside::respond(const std::shared_ptr<Flight>& flight, Outcome outcome) {
  host_.loop.after(host_.chance.between(1ms, 30ms),
                   [this, flight, outcome = std::move(outcome)]() mutable {
                     if (flight->life->dead || flight->answered) return;
                     if (!host_.boundary(*flight->life, "tool.answers")) return;
                     flight->life->post([this, flight, outcome = std::move(outcome)]() mutable {
                       hear(*flight, outcome);
                       flight->answer(std::move(outcome));
                     });
                   });
}

}  // namespace ae::sim
