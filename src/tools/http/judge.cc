#include "tools/http/judge.h"

#include <algorithm>
#include <map>
#include <optional>

#include "core/http_status.h"
#include "core/json.h"
#include "core/utf8.h"

namespace ae::tools {
namespace {

using net::HttpAnswer;
using net::HttpPhase;

constexpr std::size_t kExternalIdMax = 256;  // bytes

std::string lower(std::string_view text) {
  std::string out(text);
  for (char& c : out) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return out;
}

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t')) text.remove_suffix(1);
  return text;
}

bool says_json(const HttpAnswer& answer) {
  const std::string_view type = net::find_header(answer.headers, "Content-Type").value_or("");
  const std::string media = lower(trimmed(type.substr(0, type.find(';'))));
  return media == "application/json" || media.ends_with("+json");
}

// What a body says of a failure, for a person: `error.message` of JSON that has it, else its first bytes.
std::string said_in(const HttpAnswer& answer, const std::vector<UsedSecret>& used) {
  std::string said = answer.body;
  if (says_json(answer)) {
    const auto body = parse_json(answer.body);
    if (body && !(*body)["error"].text("message").empty()) said = (*body)["error"].text("message");
  }
  said = scrub(said, used);
  said.resize(said.find_last_not_of(" \t\r\n") + 1);  // npos + 1: nothing but blanks
  const Value shown = invalid_output("", said, 0);
  return std::string(shown.text("head"));
}

// The body by its Content-Type; fails with the reason why its record says `invalid`.
std::expected<Value, std::string> read_body(const HttpAnswer& answer, const HttpRules& rules) {
  if (answer.body.size() > rules.output_max) {
    return std::unexpected("the answer is larger than " + std::to_string(rules.output_max) +
                           " bytes");
  }
  if (answer.body.empty()) return Value();
  const std::string_view encoding =
      net::find_header(answer.headers, "Content-Encoding").value_or("identity");
  if (!net::equal_ignoring_case(trimmed(encoding), "identity")) {
    return std::unexpected("the answer is encoded (" + std::string(encoding) +
                           "), which was not requested");
  }
  if (says_json(answer)) {
    auto value = parse_json(
        answer.body,
        {.bytes_max = rules.output_max, .big_integers_as_strings = rules.big_integers_as_strings});
    if (!value) return std::unexpected("the answer is " + value.error().message);
    return *std::move(value);
  }
  if (!is_utf8(answer.body)) return std::unexpected("the answer is not UTF-8 text");
  return Value(answer.body);
}

Value headers_value(const HttpAnswer& answer) {
  std::map<std::string, std::string> joined;
  for (const net::HttpHeader& header : answer.headers) {
    const std::string value = printable(header.value, Lines::escape);
    auto [at, is_new] = joined.try_emplace(printable(lower(header.name), Lines::escape), value);
    if (!is_new) at->second += ", " + value;
  }
  std::vector<Member> members;
  members.reserve(joined.size());
  for (auto& [name, value] : joined) members.emplace_back(name, std::move(value));
  return Value::object(std::move(members));
}

// The downstream's own id, where most services say it: `id` of the answer.
std::string external_id_of(const Value& body) {
  const Value& id = body["id"];
  std::string text = id.is_string() ? id.as_string() : id.is_integer() ? canonical(id) : "";
  return text.size() <= kExternalIdMax ? text : "";
}

Outcome ended(OutcomeKind kind, bool definite, bool retryable, std::string code,
              std::string message) {
  Outcome outcome;
  outcome.kind = kind;
  outcome.definite = definite;
  outcome.retryable = retryable;
  outcome.error_code = std::move(code);
  outcome.error_message = std::move(message);
  return outcome;
}

// Of a page the title says most, of anything else its first words.
std::string page_in(const HttpAnswer& answer, const std::vector<UsedSecret>& used) {
  constexpr std::string_view kBegin = "<title>", kEnd = "</title>";
  const std::string shape = lower(std::string_view(answer.body).substr(0, kScrubWindow));
  const std::size_t begin = shape.find(kBegin);
  const std::size_t end = begin == shape.npos ? shape.npos : shape.find(kEnd, begin);
  if (end == shape.npos) return said_in(answer, used);
  HttpAnswer title;
  title.body = trimmed(
      std::string_view(answer.body).substr(begin + kBegin.size(), end - begin - kBegin.size()));
  return said_in(title, used);
}

// A success of somebody who does not speak as he should; nothing when he does, or when only his answer's size is wrong.
std::optional<Outcome> not_json(const HttpAnswer& answer, const HttpRules& rules,
                                const std::expected<Value, std::string>& body,
                                const std::vector<UsedSecret>& used) {
  if (answer.body.size() > rules.output_max) return std::nullopt;
  const auto strange = [&](const char* code, std::string message) {
    return ended(OutcomeKind::unknown, false, true, code, std::move(message));
  };
  if (answer.body.empty()) return strange("not_json", "it sent nothing");
  if (says_json(answer)) {
    if (body) return std::nullopt;
    return strange("broken_json", scrub(body.error(), used));
  }
  if (body && parse_json(answer.body, {.bytes_max = rules.output_max})) return std::nullopt;
  const std::string_view type = net::find_header(answer.headers, "Content-Type").value_or("");
  const std::string media = lower(trimmed(type.substr(0, type.find(';'))));
  std::string message = "it sent ";
  message +=
      media.empty() ? "no content type" : invalid_output("", scrub(media, used), 0).text("head");
  if (const std::string said = page_in(answer, used); !said.empty()) {
    message += " (";
    message += said;
    message += ")";
  }
  return strange("not_json", std::move(message));
}

Outcome succeeded(const HttpAnswer& answer, const HttpRules& rules,
                  const std::vector<UsedSecret>& used) {
  Outcome outcome;
  outcome.kind = OutcomeKind::success;
  auto body = read_body(answer, rules);
  if (rules.json_only) {
    if (auto strange = not_json(answer, rules, body, used)) return *std::move(strange);
  }
  if (!body) {
    // How much was read beyond the limit is chance; the record does not depend on it.
    const std::string_view kept = std::string_view(answer.body).substr(0, rules.output_max + 1);
    outcome.invalid = invalid_output(scrub(body.error(), used), scrub(answer.body, used),
                                     sha256(kept), kept.size());
    return outcome;
  }
  outcome.external_id = scrub(external_id_of(*body), used);
  Value result = *std::move(body);
  if (rules.full) {
    result = Value::object({{"status", answer.status},
                            {"headers", headers_value(answer)},
                            {"body", std::move(result)}});
  }
  outcome.result = scrub_value(result, used);
  return outcome;
}

// The same words each time: "after 3 ms" is taken out.
std::string timeless(std::string text) {
  constexpr std::string_view kAfter = " after ";
  for (std::size_t at = 0; (at = text.find(kAfter, at)) != text.npos;) {
    const std::size_t digits = at + kAfter.size();
    const std::size_t unit = text.find_first_not_of("0123456789", digits);
    const std::string_view rest =
        unit == text.npos ? std::string_view() : std::string_view(text).substr(unit);
    const bool time = unit > digits && (rest.starts_with(" ms") || rest.starts_with(" millisec"));
    if (!time) {
      at = digits;
      continue;
    }
    const std::size_t end = text.find_first_of(" ,:;", unit + 1);
    text.erase(at, end == text.npos ? text.npos : end - at);
  }
  return text;
}

Outcome by_status(const HttpAnswer& answer, const HttpRules& rules,
                  const std::vector<UsedSecret>& used) {
  const int status = answer.status;
  if (status >= 200 && status < 300) return succeeded(answer, rules, used);
  const bool nothing = says_nothing_happened(status);
  const bool declared = std::ranges::count(rules.definite_failures, status) > 0;
  const bool definite = declared || nothing;
  const bool retryable = status == 429 || (status >= 400 && !nothing);
  const std::string who = rules.target.empty() ? "the server" : rules.target;
  std::string message = who + " answered " + std::to_string(status);
  if (const std::string said = said_in(answer, used); !said.empty()) message += ": " + said;
  Outcome outcome = ended(definite ? OutcomeKind::failure : OutcomeKind::unknown, definite,
                          retryable, "http_" + std::to_string(status), std::move(message));
  outcome.settled = !definite && answer.phase == HttpPhase::complete && settles_call(status);
  return outcome;
}

Outcome by_phase(const HttpAnswer& answer, const HttpRules& rules,
                 const std::vector<UsedSecret>& used) {
  const std::string lead = rules.target.empty() ? "" : rules.target + ": ";
  const auto refused = [&](const char* code, bool retryable) {
    return ended(OutcomeKind::failure, true, retryable, code,
                 lead + timeless(scrub(answer.error, used)));
  };
  switch (answer.phase) {
    case HttpPhase::invalid:
      return refused("request_invalid", false);
    case HttpPhase::not_sent:
      return refused("not_sent", true);
    case HttpPhase::resolve_failed:
    case HttpPhase::connect_failed:
      return refused("connect", true);
    case HttpPhase::tls_failed:
      return refused("tls", true);
    case HttpPhase::complete:
      return by_status(answer, rules, used);
    case HttpPhase::no_answer:
    case HttpPhase::cut_off:
      break;
  }
  // We stopped reading; the server had said all that counts.
  if (answer.too_large) return by_status(answer, rules, used);
  const std::string why = lead + timeless(scrub(answer.error, used));
  if (answer.timed_out) return ended(OutcomeKind::timeout, false, true, "timeout", why);
  return ended(OutcomeKind::unknown, false, true, answer.cancelled ? "abandoned" : "reset", why);
}

// Shows the words, not the bytes: these have a secret in pieces, which nobody would find there.
Outcome refused(const HeardStream& heard, const std::string& why,
                const std::vector<UsedSecret>& used) {
  Outcome outcome;
  outcome.kind = OutcomeKind::success;
  outcome.invalid = invalid_output(scrub(why, used), heard.head, heard.hash.finish(), heard.bytes);
  return outcome;
}

Outcome streamed(const HttpAnswer& answer, const HeardStream& heard, const HttpRules& rules,
                 const std::vector<UsedSecret>& used) {
  const StreamReader& reader = heard.reader;
  const Error* const broken = heard.broken;
  if (reader.is_whole()) {
    const Value body = reader.body();
    if (canonical(body).size() > rules.output_max) {
      return refused(
          heard, "the answer is larger than " + std::to_string(rules.output_max) + " bytes", used);
    }
    Outcome outcome;
    outcome.kind = OutcomeKind::success;
    outcome.external_id = scrub(external_id_of(body), used);
    outcome.result = scrub_value(body, used);
    return outcome;
  }
  const std::string limit = std::to_string(kStreamMax);
  if (answer.too_large) {
    return refused(heard, "the streamed answer is larger than " + limit + " bytes", used);
  }
  if (broken != nullptr && broken->code != Code::unavailable) {
    return refused(heard, broken->message, used);
  }
  if (broken != nullptr) {
    return ended(OutcomeKind::unknown, false, true, reader.error_code(),
                 scrub(broken->message, used));
  }
  if (answer.phase == HttpPhase::complete) {
    return ended(OutcomeKind::unknown, false, true, reader.error_code(),
                 "the streamed answer stopped before its end");
  }
  return by_phase(answer, rules, used);
}

}  // namespace

Outcome judge_stream(const HttpAnswer& answer, const HeardStream& heard, const HttpRules& rules,
                     const std::vector<UsedSecret>& used) {
  Outcome outcome = streamed(answer, heard, rules, used);
  outcome.retry_after = answer.retry_after;
  outcome.took = answer.took;
  return outcome;
}

Outcome judge(const HttpAnswer& answer, const HttpRules& rules,
              const std::vector<UsedSecret>& used) {
  Outcome outcome = by_phase(answer, rules, used);
  outcome.retry_after = answer.retry_after;
  outcome.took = answer.took;
  return outcome;
}

}  // namespace ae::tools
