#include "cli/trace_details.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstddef>
#include <optional>
#include <vector>

#include "base/counted.h"
#include "base/time.h"
#include "cli/phrases.h"
#include "cli/shared.h"
#include "cli/trace_fields.h"
#include "inspect/aliases.h"
#include "inspect/step_tree.h"
#include "json/json.h"
#include "log/decisions.h"
#include "log/field_names.h"
#include "log/outcome.h"

namespace ae::cli {
namespace {

using engine::ExternalEffect;
using engine::StepStatus;

constexpr std::size_t kErrorLines = 10;  // per try

// An item of a map, a turn of a loop or a call of one, a request of code.
bool is_part(const Value& node) {
  return node["item"].is_integer() || node["turn"].is_integer() ||
         node[field::position].is_string();
}

}  // namespace

StatusMark mark_of(std::string_view status) {
  if (status == to_text(StepStatus::done)) return {"✓", Tint::good};
  if (status == to_text(StepStatus::failed)) return {"✗", Tint::bad};
  if (status == to_text(StepStatus::skipped)) return {"-", Tint::dim};
  if (status == to_text(StepStatus::running)) return {"▸", Tint::accent};
  if (status == to_text(StepStatus::waiting)) return {"…", Tint::warn};
  if (status == to_text(StepStatus::backoff)) return {"↻", Tint::warn};
  if (status == to_text(StepStatus::in_doubt)) return {"?", Tint::bad};
  return {"·", Tint::dim};  // pending, not_run
}

TraceDetails::TraceDetails(const Value& trace, const TraceStyle& style, std::string& out)
    : trace_(trace), style_(style), out_(out) {
  lost_ = std::ranges::any_of(items_of(trace["attempts"]),
                              [](const Value& attempt) { return attempt.text("ended") == "lost"; });
}

std::string TraceDetails::word_of(const Value& node, const std::string& status) const {
  std::string word = why_of(node, status);
  if (is_part(node) || !node["dropped_by"].is_integer()) return word;
  return fmt::format("{}{}dropped by plan {}", word, word.empty() ? "" : ", ",
                     natural_of(node["dropped_by"]));
}

// Recorded by an attempt before the last one that was lost: a suspension for a timer or approval
// loses nothing.
bool TraceDetails::replayed(const Value& node) const {
  if (node["replayed"] != Value(true)) return false;
  bool after = false;
  for (const Value& attempt : items_of(trace_["attempts"])) {
    after = after || attempt.text(field::attempt_id) == node.text("executed_by");
    if (after && attempt.text("ended") == "lost") return true;
  }
  return false;
}

// The status text of a step, unless it is simply done.
std::string TraceDetails::why_of(const Value& node, const std::string& status) const {
  if (node["imported"] == Value(true)) return "imported";
  if (status == to_text(StepStatus::done)) return replayed(node) ? "replayed" : "";
  if (status == to_text(StepStatus::in_doubt)) return "outcome unknown";
  if (status == to_text(StepStatus::not_run)) return "not run";
  if (node["items"].size() > 0 && status == to_text(StepStatus::running)) {
    std::size_t done = 0;
    for (const Value& item : items_of(node["items"]))
      done += item.text("status") == to_text(StepStatus::done);
    return fmt::format("{} of {}{} done", done, node["items"].size(),
                       node[field::code].is_object() ? "" : " begun");
  }
  return status == to_text(StepStatus::pending) ? "" : status;
}

void TraceDetails::detail(const std::string& trunk, Tint tint, const std::string& text) {
  const char* indent = "";
  for (const std::string& line : message_lines(text)) {
    put(Line().add(Tint::dim, trunk + indent).add(tint, line));
    indent = "  ";
  }
}

void TraceDetails::details(const Value& node, const std::string& status, const std::string& trunk) {
  code(node, trunk);
  if (style_.verbose && node[field::delivered].is_integer()) {
    detail(trunk, Tint::dim,
           fmt::format("requested after {}",
                       counted(natural_of(node[field::delivered]), field::outcome)));
  }
  if (node["effect"].is_object() &&
      !(is_part(node) && status == to_text(StepStatus::done) && !style_.verbose)) {
    effect(node, trunk);
  }
  if (!style_.verbose && !node["turn"].is_integer()) applied_items(node, trunk);
  if (node["model"].text("answered") != "") model(node["model"], trunk);
  for (const Value& change : items_of(node["changes"])) this->change(change, trunk);
  put_tries(node, trunk);
  child(node["child"], trunk);
  for (const Value& wait : items_of(node[field::waits])) this->wait(node, wait, trunk);
  for (const Value& probe : items_of(node["probes"])) put_side_call(probe, "probe: ", trunk);
  if (node["compensation"].is_object()) put_side_call(node["compensation"], "undo: ", trunk);
  if (status == to_text(StepStatus::failed) && node[field::error].is_object()) {
    const std::string code(node[field::error].text(field::code));
    const auto all = shown_tries(node);
    // The error of a try is printed beside it. A different one is printed once, here or in the
    // foot.
    const Value& last_try_error = all.empty() ? Value() : all.back()[field::error];
    const Value& end = trace_[field::error];
    const bool at_foot = end.text(field::code) == code &&
                         end.text("message") == node[field::error].text("message") &&
                         (last_try_error.text(field::code) == code || !end.text("summary").empty());
    const bool is_shown =
        at_foot || (last_try_error.text(field::code) == code &&
                    last_try_error.text("message") == node[field::error].text("message"));
    if (!is_shown) wrapped(trunk, code, node[field::error].text("message"));
  }
}

// The code of a node, and how it ended if the job is parked because of that.
void TraceDetails::code(const Value& node, const std::string& trunk) {
  const Value& code = node[field::code];
  if (!code.is_object()) return;
  const std::string_view version = code.text(field::version);
  detail(trunk, Tint::dim,
         fmt::format("code {}{}{} ({})", code.text(field::agent), version.empty() ? "" : " ",
                     version, code.text("language")));
  const Value& end = node["code_end"];
  if (!end.is_object()) return;
  if (const Value& exception = end["exception"]; exception.is_object()) {
    wrapped(trunk, std::string(exception.text("name")), exception.text("message"));
  } else {
    wrapped(trunk, "non_determinism", difference(node, end["diverged"]));
  }
  command(trunk, "it runs again with other code, or after: ",
          fmt::format("aetheris resume {}", trace_.text("id")));
}

namespace {

// The request with this position among the parts of the node; null: none.
const Value& request_at(const Value& node, std::string_view position) {
  static const Value kNone{};
  for (const Value& part : items_of(node["items"])) {
    if (part.text(field::position) == position) return part;
    if (const Value& inner = request_at(part, position); inner.is_object()) return inner;
  }
  return kNone;
}

}  // namespace

// "at charge, after 4 outcomes, the code calls pay, not refund as in the log"
std::string TraceDetails::difference(const Value& node, const Value& diverged) {
  const std::string_view position = diverged.text(field::position);
  const Value& found = diverged["found"];
  const std::string_view called = found.text("tool");
  const std::string_view logged = request_at(node, position).text("tool");
  const std::string what =
      diverged.text("finding") == "ended" ? "the code ends, and the log has a request there"
      : !found.is_object()                ? "the code makes no request, and the log has one there"
      : called.empty()
          ? fmt::format("the code requests a {}, not what the log has", found.text(field::kind))
      : called == logged
          ? fmt::format("the code calls {} with other arguments than in the log", called)
          : fmt::format("the code calls {}, not {} as in the log", called,
                        logged.empty() ? "the wait or scope" : logged);
  return fmt::format("at {}, after {}, {}", position,
                     counted(natural_of(diverged[field::delivered]), field::outcome), what);
}

// A call that belongs to the step's call, such as a probe.
void TraceDetails::put_side_call(const Value& side, const char* what, const std::string& trunk) {
  const std::string status(side.text("status"));
  const StatusMark mark = mark_of(status);
  put(Line()
          .add(Tint::dim, trunk)
          .add(mark.tint, fmt::format("{} ", mark.sign))
          .add(fmt::format("{}{}", what, side.text("tool")))
          .add(Tint::dim, "  " + span_text(side[field::duration_us]))
          .add(mark.tint, status == to_text(StepStatus::done) ? "" : "  " + word_of(side, status)));
  details(side, status, trunk + "  ");
}

// The child job of a call. One that is open is shown by its wait.
void TraceDetails::child(const Value& child, const std::string& trunk) {
  const std::string_view status = child.text("status");
  if (!child.is_object() || status == "open") return;
  const std::string took = span_text(child[field::duration_us]);
  detail(trunk, Tint::dim,
         fmt::format("child job {}: {}{}", safe(child.text("id")), safe(status),
                     took.empty() ? "" : fmt::format(" after {}", took)));
}

// Without those that create a child job and record its end.
std::span<const Value> TraceDetails::shown_tries(const Value& node) {
  const auto tries = items_of(node["tries"]);
  if (!node["child"].is_object()) return tries;
  const auto creates = std::ranges::find_if(tries, [](const Value& one) {
    return one.text(field::outcome) == to_text(OutcomeKind::input_required);
  });
  return {tries.begin(), creates};
}

// Prints tries and decisions in their order.
void TraceDetails::put_tries(const Value& node, const std::string& trunk) {
  const auto tries = shown_tries(node);
  const auto decisions = items_of(node["decisions"]);
  const bool plain = tries.size() == 1 &&
                     tries[0].text(field::outcome) == to_text(OutcomeKind::success) &&
                     tries[0][field::caught_up] != Value(true);
  std::size_t next = 0;
  const auto decisions_before = [&](std::size_t seq) {
    for (; next < decisions.size() && natural_of(decisions[next]["seq"]) < seq; ++next) {
      decision(decisions[next], trunk);
    }
  };
  for (const Value& one : tries) {
    decisions_before(natural_of(one["seq"]));
    if (!plain) this->put_try(one, trunk);
  }
  decisions_before(std::size_t(-1));
}

// Errors are wrapped at blanks, never cut.
void TraceDetails::wrapped(const std::string& trunk, const std::string& code,
                           std::string_view message) {
  bool first = true;
  for (const std::string& line :
       message_lines(message.empty() ? code : fmt::format("{}: {}", code, message))) {
    wrapped_line(first ? trunk : trunk + "  ", first ? code : "", line);
    first = false;
  }
}

void TraceDetails::wrapped_line(const std::string& trunk, const std::string& code,
                                std::string rest) {
  const std::size_t room = style_.width == 0                     ? std::string::npos
                           : style_.width > width_of(trunk) + 20 ? style_.width - width_of(trunk)
                                                                 : 20;
  bool first = true;
  while (!rest.empty()) {
    std::string part = rest;
    if (width_of(rest) > room) {
      part = cut(rest, room);
      part.resize(part.size() - std::string_view("…").size());
      if (const std::size_t blank = part.rfind(' '); blank != part.npos && blank > 0) {
        part.resize(blank);
      }
    }
    rest.erase(0, part.size());
    rest.erase(
        0, rest.find_first_not_of(' ') == rest.npos ? rest.size() : rest.find_first_not_of(' '));
    const std::size_t head = first ? std::min(code.size(), part.size()) : 0;
    out_ += fmt::format("{}{}{}\n", style_.paint(Tint::dim, trunk),
                        style_.paint(Tint::bad, part.substr(0, head)), part.substr(head));
    first = false;
  }
}

// A summary of the effects of a map's items; each item has its own only with --verbose.
void TraceDetails::applied_items(const Value& node, const std::string& trunk) {
  std::string kind;
  std::size_t applied = 0, unknown = 0, undone = 0;
  for (const Value& item : items_of(node["items"])) {
    const std::string_view of_item = item["effect"].text(field::effect_class);
    if (!item["item"].is_integer() || of_item.empty() || of_item == "read") continue;
    kind = of_item;
    const std::string_view world = item.text("world");
    applied += world == to_text(ExternalEffect::changed);
    unknown += world == to_text(ExternalEffect::unknown);
    undone += world == to_text(ExternalEffect::rolled_back);
  }
  if (kind.empty()) return;
  std::string text = fmt::format("{} applied", counted(applied, "item"));
  if (unknown > 0) text += fmt::format(", {} unknown", unknown);
  if (undone > 0) text += fmt::format(", {} compensated", undone);
  put(Line().add(Tint::dim, fmt::format("{}effect: {} · ", trunk, kind)).add(text));
}

void TraceDetails::effect(const Value& node, const std::string& trunk) {
  const Value& effect = node["effect"];
  const std::string world(node.text("world"));
  Line line;
  const std::string kind(effect.text(field::effect_class));
  const std::string head = fmt::format("{}effect: {}{}", trunk, kind, kind == "read" ? "" : " · ");
  const std::string state = kind == "read"                                ? ""
                            : world == to_text(ExternalEffect::unknown)   ? "outcome unknown"
                            : world == to_text(ExternalEffect::changed)   ? "applied"
                            : world == to_text(ExternalEffect::unchanged) ? "not applied"
                                                                          : world;
  line.add(Tint::dim, head);
  line.add(world == to_text(ExternalEffect::unknown)   ? Tint::bad
           : world == to_text(ExternalEffect::changed) ? Tint::none
                                                       : Tint::dim,
           state);
  std::string below;
  if (kind != "read" && effect[field::external_id].is_string()) {
    const std::string id = fmt::format("external id: {}", safe(effect.text(field::external_id)));
    const bool put_side_call = fits(width_of(fmt::format("{}{} · {}", head, state, id)));
    if (put_side_call) line.add(Tint::dim, " · " + id);
    // Never cut: operators search the service for it.
    if (!put_side_call) below = style_.paint(Tint::dim, trunk + id) + "\n";
  }
  if (style_.verbose) {
    const std::string ids = fmt::format(
        "call {} · invocation {}", effect.text(field::idempotency_key).substr(0, kTraceKeyShown),
        effect.text(field::invocation_id));
    below += style_.paint(Tint::dim, trunk + safe(ids)) + "\n";
  }
  put(line);
  out_ += below;
}

// The cost, if the agents file has prices.
std::string TraceDetails::cost_of(const Value& usage) {
  if (natural_of(usage["cost_micros"]) == 0) return {};
  std::string text = fmt::format(", cost {}", amount_text(natural_of(usage["cost_micros"])));
  if (const std::size_t rest = natural_of(usage["unpriced_calls"]); rest > 0) {
    text += fmt::format(" and {} without a price", counted(rest, "answer"));
  }
  return text;
}

// The model that answered, and its usage.
void TraceDetails::model(const Value& model, const std::string& trunk) {
  const std::string answered(model.text("answered"));
  const std::string unstarted_call(model.text(engine::plain_name::kRequested));
  const std::string requested =
      unstarted_call == answered ? "" : fmt::format(", requested as {}", unstarted_call);
  std::string text = fmt::format("model {} ({}{})", answered, model.text("provider"), requested);
  if (const Value& usage = model[field::usage]; usage.is_object()) {
    text += fmt::format(", {} + {} tokens (input + output){}", natural_of(usage["input_tokens"]),
                        natural_of(usage["output_tokens"]), cost_of(usage));
  }
  detail(trunk, Tint::dim, text);
}

// The number of the attempt, if one was lost.
std::string TraceDetails::attempt_of(std::string_view id) const {
  const auto attempts = items_of(trace_["attempts"]);
  if (!lost_) return {};
  for (std::size_t i = 0; i < attempts.size(); ++i) {
    if (attempts[i].text(field::attempt_id) == id) return fmt::format(", attempt {}", i + 1);
  }
  return {};
}

void TraceDetails::put_try(const Value& one, const std::string& trunk) {
  const std::string outcome(one.text(field::outcome));
  const bool good = outcome == to_text(OutcomeKind::success);
  const bool is_unknown = !good && outcome != to_text(OutcomeKind::failure);
  Line line;
  line.add(Tint::dim, fmt::format("{}try {}  ", trunk, natural_of(one[field::try_])));
  if (outcome.empty()) {
    line.add(Tint::warn, fmt::format("in flight since {}", short_time(one.text("started_at"))));
    if (one["progress"].is_object()) {
      line.add("  " + canonical(one["progress"]["report"]));
      line.add(Tint::dim, fmt::format(" at {}", short_time(one["progress"].text(field::at))));
    }
  } else {
    line.add(good         ? Tint::good
             : is_unknown ? Tint::warn
                          : Tint::bad,
             outcome == to_text(OutcomeKind::unknown) ? "outcome unknown" : outcome);
    if (outcome == to_text(OutcomeKind::failure) && one[field::definite] != Value(true)) {
      line.add(" (may have taken effect)");
    }
  }
  const Value& error = one[field::error];
  std::vector<std::string> error_lines;
  if (!error.text(field::code).empty()) {
    error_lines = message_lines(error_shown(error.text(field::code), error.text("message")));
  }
  if (!error_lines.empty()) line.add(fmt::format("  error: {}", error_lines[0]));
  if (one[field::caught_up] == Value(true)) line.add(Tint::accent, "  recovered from its record");
  const std::string took = outcome.empty() ? "" : span_text(one[field::duration_us]);
  line.add(Tint::dim, (took.empty() ? "" : "  " + took) + attempt_of(one.text("attempt")));
  put(line);
  for (std::size_t i = 1; i < error_lines.size(); ++i) {
    if (i == kErrorLines && error_lines.size() > kErrorLines + 1) {
      put(Line().add(Tint::dim, fmt::format("{}       … {}", trunk,
                                            counted(error_lines.size() - i, "more line"))));
      break;
    }
    put(Line().add(Tint::dim, trunk).add("       " + error_lines[i]));
  }
}

// An external change of the call, and its last verification.
void TraceDetails::change(const Value& change, const std::string& trunk) {
  const std::string verdict(change.text(field::verdict));
  const Value& detail = change[field::detail];
  Line line;
  line.add(Tint::dim,
           fmt::format("{}{} {} {}", trunk, change.text(field::operation),
                       change.text(field::resource_type), change.text(field::resource_id)));
  if (!verdict.empty()) {
    const Tint tint = verdict == "match"         ? Tint::good
                      : verdict == "unconfirmed" ? Tint::warn
                                                 : Tint::bad;
    line.add("  ").add(tint, verdict);
  }
  if (verdict == "mismatch") {
    line.add(Tint::dim, fmt::format("  recorded {}, now {}", detail.text("expected"),
                                    detail.text("observed")));
  }
  if (!detail.text(field::reason).empty()) {
    line.add(Tint::dim, "  " + first_line(detail.text(field::reason)));
  }
  put(line);
}

void TraceDetails::decision(const Value& decision, const std::string& trunk) {
  const std::string_view kind = decision.text(field::kind);
  if (kind == ConfirmationRequested::kKind && decision.text(field::state) == "requested") {
    return detail(trunk, Tint::warn,
                  "confirmation requested: is the changed resource as it should be?");
  }
  const std::string by(decision.text(field::by));
  const std::string reason(decision.text(field::reason));
  if (kind == BranchTaken::kKind) {
    if (decision[field::payload] == Value(false)) detail(trunk, Tint::dim, "when: false");
    return;
  }
  if (kind == RetryScheduled::kKind) {
    const auto at = instant_of(decision[field::at]);
    const auto next = instant_of(decision[field::not_before]);
    return detail(trunk, Tint::dim,
                  fmt::format("↻ retry{}{}{}",
                              at && next ? fmt::format(" after {}", span_text(*next - *at)) : "",
                              reason.empty() ? "" : ": ", reason));
  }
  if (kind == PatchDecided::kKind) {
    const Value& patch = decision[field::payload];
    return detail(
        trunk, Tint::dim,
        fmt::format("patch {}: {}", patch.text("patch"),
                    patch[field::value] == Value(true) ? "the changed code" : "the code before"));
  }
  if (kind == ToolChosen::kKind) return put_choice(decision[field::payload], trunk);
  std::string text = decided(kind, decision.text(field::state, kind));
  if (!by.empty()) text += fmt::format(" by {}", by);
  if (!reason.empty()) text += fmt::format(": \"{}\"", reason);
  detail(trunk, Tint::accent, text);
  if (decision.text(field::state) != "edited") return;
  // The edited arguments. Never cut.
  out_ += fmt::format("{}{}\n", style_.paint(Tint::dim, trunk + "  to "),
                      safe_json(canonical(decision[field::payload][field::arguments])));
}

// "approval requested", "approved", "resolved as happened"
std::string TraceDetails::decided(std::string_view kind, std::string_view state) {
  if (kind == OutcomeDecided::kKind) return fmt::format("resolved as {}", state);
  if (state == "requested" || state == "checked") return fmt::format("{} {}", kind, state);
  return std::string(state);
}

// What a model chose in a turn. For hidden turns only rejections.
void TraceDetails::put_choice(const Value& choice, const std::string& trunk) {
  const std::size_t turn = natural_of(choice["turn"]);
  const std::string head = fmt::format("turn {}", turn + 1);
  if (choice["repair"].is_string()) {
    return detail(trunk, Tint::warn,
                  fmt::format("{}: answer rejected: {}", head, choice.text("repair")));
  }
  std::string names;
  bool refused = false;
  for (const Value& call : items_of(choice["calls"])) {
    names += fmt::format("{}{}", names.empty() ? " calls " : ", ", call.text("name"));
    if (!call["refused"].is_object()) continue;
    refused = true;
    names += fmt::format(" (refused: {})", call["refused"].text(field::code));
  }
  if (!refused && turn >= kTracePartsShown) return;
  detail(trunk, refused ? Tint::warn : Tint::dim,
         head + (names.empty() ? " calls no tool" : names));
}

// The error message of a step's last try.
std::string_view TraceDetails::last_error(const Value& node) {
  const auto tries = items_of(node["tries"]);
  return tries.empty() ? std::string_view() : tries.back()[field::error].text("message");
}

void TraceDetails::wait(const Value& node, const Value& wait, const std::string& trunk) {
  const std::string key(wait.text(field::correlation_key));
  const std::string type(wait.text(field::wait_type));
  const bool doubt = key.starts_with("resolve/");
  const bool open = !wait["completed_at"].is_string();
  const bool ended = trace_["ended_at"].is_string();
  if (!open) {
    if (doubt || type == "job") return;  // its decision, or its child, is printed
    const std::string what = type == "timer" ? type : fmt::format("{} {}", type, key);
    std::string text = fmt::format("{}: {}", what, wait.text(field::outcome));
    if (wait[field::by].is_string()) text += fmt::format(" by {}", wait.text(field::by));
    const auto from = instant_of(wait[field::opened_at]);
    const auto to = instant_of(wait["completed_at"]);
    if (from && to) text += fmt::format(" after {}", span_text(*to - *from));
    if (!wait[field::payload].is_null()) text += "  " + canonical(wait[field::payload]);
    return detail(trunk, Tint::dim, text);
  }
  if (ended) return;
  const std::string id(trace_.text("id"));
  if (doubt) {
    const std::string reason(wait.text(field::reason));
    const bool undo = node.text("role") == "compensation";
    detail(trunk, Tint::warn,
           fmt::format("{}{}",
                       undo ? "it is unknown whether the step is undone"
                            : "the outcome of the call is unknown",
                       cause_of(reason, last_error(node))));
    const std::string resolve =
        fmt::format("aetheris resolve {} {}", id, key.substr(8, kTraceKeyShown));
    command(trunk, "answer: ", fmt::format("{} happened RESULT", resolve));
    command(trunk, "    or: ", fmt::format("{} not_happened", resolve));
    return command(trunk, "    or: ", fmt::format("{} fail", resolve));
  }
  if (type == "timer") {
    return detail(trunk, Tint::warn, fmt::format("until {}", short_time(wait.text(field::due_at))));
  }
  if (type == "job") {
    const std::string child(key.substr(key.find('/') + 1, kUuidTextSize));
    detail(
        trunk, Tint::warn,
        fmt::format("waiting for job {} since {}", child, short_time(wait.text(field::opened_at))));
    return command(trunk, "see: ", fmt::format("aetheris job {}", child));
  }
  const std::string approval(wait.text("approval")), channel(wait.text(field::channel));
  const std::string what = key.starts_with("approval/") ? "approval of the call"
                           : channel.empty()            ? fmt::format("{} with key {}", type, key)
                                             : fmt::format("{} on channel {}", type, channel);
  const std::string until =
      wait[field::expires_at].is_string()
          ? fmt::format(", until {}", short_time(wait.text(field::expires_at)))
          : "";
  detail(trunk, Tint::warn,
         fmt::format("waiting for {} since {}{}", what, short_time(wait.text(field::opened_at)),
                     until));
  if (!approval.empty()) {
    command(trunk, "answer: ", fmt::format("aetheris approve {}", approval));
    return command(trunk, "    or: ", fmt::format("aetheris reject {}", approval));
  }
  command(trunk, "answer: ",
          channel.empty() ? fmt::format("aetheris signal {} {} '{{}}'", id, quoted(key))
                          : fmt::format("aetheris message {} {} '{{}}'", id, quoted(channel)));
}

// Never cut: made to be copied.
void TraceDetails::command(const std::string& trunk, const std::string& how,
                           const std::string& words) {
  out_ += fmt::format("{}{}\n", style_.paint(Tint::dim, trunk + how),
                      style_.paint(Tint::bold, safe(words + style_.store_flag)));
}

}  // namespace ae::cli
