#include "cli/phrases.h"

#include <fmt/core.h>

#include <algorithm>
#include <string>
#include <utility>

#include "base/counted.h"
#include "base/time.h"
#include "cli/shared.h"
#include "cli/text.h"
#include "log/field_names.h"
#include "log/park_until.h"
#include "net/system.h"

namespace ae::cli {
namespace {

constexpr std::int64_t kSecond = 1'000'000;  // µs

bool is_signal(std::string_view code) { return code.starts_with("signal_"); }

}  // namespace

std::string short_time(std::string_view instant) {
  if (instant.size() < 19 || instant[10] != 'T') return safe(instant);
  std::string text(instant.substr(0, 19));
  text[10] = ' ';
  return safe(text) + "Z";
}

std::string exact_time(std::string_view instant) {
  const auto at = instant_from_text(instant);
  if (!at) return short_time(instant);
  const std::string ms = std::to_string(1'000 + at->us / 1'000 % 1'000).substr(1);
  std::string text = short_time(instant);
  return text.insert(text.size() - 1, "." + ms);
}

std::string short_time_after(std::string_view instant) {
  const auto at = instant_from_text(instant);
  if (!at) return short_time(instant);
  return short_time(to_text(Instant{(at->us + kSecond - 1) / kSecond * kSecond}));
}

std::string call_of(std::string_view tool) {
  return fmt::format("call of tool \"{}\"", safe(tool));
}

std::string cause_of(std::string_view code, std::string_view message) {
  const bool known = code.empty() || code == "the outcome is unknown";
  if (known || (is_signal(code) && !message.empty())) return "";
  if (is_signal(code)) return fmt::format(" (killed by signal {})", safe(code.substr(7)));
  return fmt::format(" ({})", safe(code));
}

std::string calls_text(std::uint64_t tries, std::uint64_t retries, std::string_view call) {
  std::string calls = counted(tries - std::min(tries, retries), call);
  if (retries == 0) return calls;
  return fmt::format("{}, {} ({})", calls, counted(tries, "try"), counted(retries, "retry"));
}

std::string place_text(const Value& step) {
  std::string text = safe(step.text(field::node_id));
  if (step["turn"].is_integer()) text += fmt::format(" turn {}", step["turn"].as_int() + 1);
  if (step["item"].is_integer()) text += fmt::format("[{}]", step["item"].as_int());
  if (step[field::position].is_string()) {
    text += fmt::format(" {}", safe(step.text(field::position)));
  }
  if (step["turn_call"].is_integer()) {
    text += fmt::format(", call {}", step["turn_call"].as_int() + 1);
  }
  return text;
}

std::string error_shown(std::string_view code, std::string_view message) {
  if (is_signal(code) && !message.empty()) return message_text(message, "");
  if (message.empty()) return safe(code);
  return fmt::format("{}: {}", safe(code), message_text(message, ""));
}

namespace {

struct ParkReason {
  std::string_view code, why, next;
};
constexpr ParkReason kParkReasons[] = {
    {"invocation_in_doubt", "the outcome of a call is unknown", "after aetheris resolve"},
    {"budget_exceeded", "the budget is exhausted", "after aetheris budget"},
    {"execution_version_mismatch", "it needs another execution version",
     "in a process that has it"},
    {"replay_verification_human_required", "a resource has changed", "after aetheris resolve"},
    {"verifier_unreachable", "a changed resource cannot be checked",
     "after aetheris resume or resolve"},
    {"worn_out", "its process died twice", "after aetheris resume"},
    {"non_determinism", "its code differs from the log",
     "with a version of the code that fits the log, or after aetheris resume"},
    {"routine_failed", "its code ended with an exception",
     "with a new version of the code, or after aetheris resume"},
    {"routine_stalled", "its code waits for nothing and has not ended",
     "with a new version of the code, or after aetheris resume"},
    {"store_rolled_back", "the store was rolled back", "after aetheris resume"},
    {"paused", "paused", "after aetheris resume"}};

}  // namespace

std::string committed_text(const Value& job) {
  const Value& error = job[field::error];
  // Of code, the trace names the requests.
  const bool is_code = job["code_agent"].is_object();
  const std::string names = is_code ? "" : names_text(error["committed"]);
  std::string text = names.empty() ? "" : fmt::format("Took effect: {}", names);
  if (error.text(field::code).starts_with("exit_")) {
    text += text.empty() ? "" : ". ";
    text += "A program that exits with an error counts as not applied: a retry calls it again";
  }
  return text;
}

std::string park_reason(const Value& parked, const Value& in_doubt) {
  const std::string_view reason = parked.text(field::reason);
  const bool is_compensation = in_doubt.is_array() && in_doubt.size() > 0 &&
                               std::ranges::all_of(in_doubt.items(), [](const Value& doubt) {
                                 return doubt["compensates"].is_string();
                               });
  if (is_compensation && reason == "invocation_in_doubt") return "a compensation is not confirmed";
  for (const ParkReason& known : kParkReasons) {
    if (reason == known.code) return std::string(known.why);
  }
  const bool paused = parked.text(field::until) == park_until::kResume;
  return paused ? fmt::format("paused ({})", safe(reason)) : safe(reason);
}

std::string parked_text(const Value& parked, const Value& in_doubt) {
  const std::string_view reason = parked.text(field::reason), until = parked.text(field::until);
  const std::string why = park_reason(parked, in_doubt);
  for (const ParkReason& known : kParkReasons) {
    if (reason != known.code) continue;
    return fmt::format("{}{}; continues {}", why,
                       reason == "paused" ? "" : fmt::format(" [{}]", safe(reason)), known.next);
  }
  if (until == park_until::kResume) return fmt::format("{}; continues after aetheris resume", why);
  return until.empty() ? why : fmt::format("{}; continues after {}", why, safe(until));
}

std::string job_head(const Value& job) {
  return fmt::format("job {} · agent {}", safe(job.text("id")), safe(job.text(field::agent)));
}

std::string answer_note(std::string_view command, const AnswerTo& to) {
  if (!command.starts_with("aetheris resolve ")) return "";
  // Format: aetheris resolve JOB KEY RESOLUTION …
  std::string_view rest = command;
  for (int i = 0; i < 4; ++i) {
    const std::size_t blank = rest.find(' ');
    if (blank == rest.npos) return "";
    rest.remove_prefix(blank + 1);
  }
  const std::string_view word = rest.substr(0, rest.find(' '));
  const bool is_compensation = to.doubt["compensates"].is_string();
  if (word == "happened") return "it took effect; replace RESULT with the call's result as JSON";
  if (word == "accept") return "keep the change; the job continues";
  if (word == "fail") {
    if (to.confirms) return "the job fails";
    if (to.ended) return "the outcome stays unknown";
    return is_compensation ? "the step stays as it is"
                           : "the node fails; the outcome stays unknown";
  }
  if (word != "not_happened") return "";
  const std::string_view from = to.doubt.text("resolvable_at");
  const auto at = instant_from_text(from);
  const bool later = at && *at > net::SystemClock().now();
  return fmt::format("it took no effect{}{}", to.ended ? "" : "; the call is sent again",
                     later ? fmt::format("; accepted after {}", short_time_after(from)) : "");
}

std::string head_text(std::string_view head, bool has_signature) {
  if (head == "intact") return "log signed";
  if (head == "unknown_key") return "log signed with an unknown key; --key names its public key";
  if (head == "unsigned") {
    return has_signature ? "log signed, except its last events"
                         : "log not signed (to sign logs: `run` or `serve` with --signing-key)";
  }
  return fmt::format("log {}", safe(head));  // altered, truncated
}

std::string proof_text(std::string_view detail) {
  constexpr std::string_view kDerived = "ledger: derived; ";
  if (detail.starts_with(kDerived)) {
    return fmt::format("record of all calls, rebuilt from the log: {}",
                       safe(detail.substr(kDerived.size())));
  }
  return safe(detail);
}

}  // namespace ae::cli
