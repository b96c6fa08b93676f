#include "tools/http/classify_response.h"

#include <fmt/core.h>

#include <algorithm>
#include <map>
#include <optional>

#include "base/http_status.h"
#include "base/utf8.h"
#include "json/json.h"
#include "log/field_names.h"

namespace ae::tools {
namespace {

using net::HttpPhase;
using net::HttpResult;

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

bool is_json(const HttpResult& answer) {
  const std::string_view type = net::find_header(answer.headers, "Content-Type").value_or("");
  const std::string media = lower(trimmed(type.substr(0, type.find(';'))));
  return media == "application/json" || media.ends_with("+json");
}

// The error text of a response: `error.message` of a JSON body, else its first bytes.
std::string error_text_in(const HttpResult& answer, const std::vector<UsedSecret>& used) {
  std::string error_text = answer.body;
  if (is_json(answer)) {
    const auto body = parse_json(answer.body);
    const std::string_view message =
        body ? (*body)[field::error].text("message") : std::string_view();
    if (!message.empty()) error_text = message;
  }
  error_text = scrub(error_text, used);
  error_text.resize(error_text.find_last_not_of(" \t\r\n") + 1);  // npos + 1 == 0: only blanks
  const Value shown = invalid_output("", error_text, 0);
  return std::string(shown.text("head"));
}

// The body by its Content-Type. Fails with the reason to record in `invalid`.
std::expected<Value, std::string> read_body(const HttpResult& answer, const HttpRules& rules) {
  if (answer.body.size() > rules.output_max) {
    return std::unexpected(fmt::format("the answer is larger than {} bytes", rules.output_max));
  }
  if (answer.body.empty()) return Value();
  const std::string_view encoding =
      net::find_header(answer.headers, "Content-Encoding").value_or("identity");
  if (!net::equal_ignoring_case(trimmed(encoding), "identity")) {
    return std::unexpected(
        fmt::format("the answer is encoded ({}), which was not requested", encoding));
  }
  if (is_json(answer)) {
    auto value = parse_json(
        answer.body,
        {.bytes_max = rules.output_max, .big_integers_as_strings = rules.big_integers_as_strings});
    if (!value) return std::unexpected(fmt::format("the answer is {}", value.error().message));
    return *std::move(value);
  }
  if (!is_utf8(answer.body)) return std::unexpected("the answer is not UTF-8 text");
  return Value(answer.body);
}

Value headers_value(const HttpResult& answer) {
  std::map<std::string, std::string> joined;
  for (const net::HttpHeader& header : answer.headers) {
    const std::string value = printable(header.value, LineBreaks::escape);
    auto [at, is_new] =
        joined.try_emplace(printable(lower(header.name), LineBreaks::escape), value);
    if (!is_new) at->second += ", " + value;
  }
  std::vector<Member> members;
  members.reserve(joined.size());
  for (auto& [name, value] : joined) members.emplace_back(name, std::move(value));
  return Value::object(std::move(members));
}

// The external id, if the response has one: its member `id`.
std::string external_id_of(const Value& body) {
  const Value& id = body["id"];
  std::string text = id.is_string() ? id.as_string() : id.is_integer() ? canonical(id) : "";
  return text.size() <= kExternalIdMax ? text : "";
}

// The title of an HTML page, otherwise the first bytes.
std::string page_summary_in(const HttpResult& answer, const std::vector<UsedSecret>& used) {
  constexpr std::string_view kBegin = "<title>", kEnd = "</title>";
  const std::string lowered = lower(std::string_view(answer.body).substr(0, kScrubWindow));
  const std::size_t begin = lowered.find(kBegin);
  const std::size_t end = begin == lowered.npos ? lowered.npos : lowered.find(kEnd, begin);
  if (end == lowered.npos) return error_text_in(answer, used);
  HttpResult title;
  title.body = trimmed(
      std::string_view(answer.body).substr(begin + kBegin.size(), end - begin - kBegin.size()));
  return error_text_in(title, used);
}

// The outcome of a 2xx response that is not valid JSON. nullopt: it is, or only its size is wrong.
std::optional<Outcome> not_json(const HttpResult& answer, const HttpRules& rules,
                                const std::expected<Value, std::string>& body,
                                const std::vector<UsedSecret>& used) {
  if (answer.body.size() > rules.output_max) return std::nullopt;
  const auto protocol_error = [&](const char* code, std::string message) {
    return make_outcome(OutcomeKind::unknown, false, true, code, std::move(message));
  };
  if (answer.body.empty()) return protocol_error("not_json", "it sent nothing");
  if (is_json(answer)) {
    if (body) return std::nullopt;
    return protocol_error("broken_json", scrub(body.error(), used));
  }
  if (body && parse_json(answer.body, {.bytes_max = rules.output_max})) return std::nullopt;
  const std::string_view type = net::find_header(answer.headers, "Content-Type").value_or("");
  const std::string media = lower(trimmed(type.substr(0, type.find(';'))));
  const Value shown = invalid_output("", scrub(media, used), 0);
  const std::string summary = page_summary_in(answer, used);
  return protocol_error(
      "not_json",
      fmt::format("it sent {}{}", media.empty() ? "no content type" : shown.text("head"),
                  summary.empty() ? "" : fmt::format(" ({})", summary)));
}

Outcome classify_success(const HttpResult& answer, const HttpRules& rules,
                         const std::vector<UsedSecret>& used) {
  Outcome outcome;
  outcome.kind = OutcomeKind::success;
  auto body = read_body(answer, rules);
  if (rules.json_only) {
    if (auto protocol_error = not_json(answer, rules, body, used))
      return *std::move(protocol_error);
  }
  if (!body) {
    // How much was read beyond the limit varies; the record must not depend on it.
    const std::string_view kept = std::string_view(answer.body).substr(0, rules.output_max + 1);
    outcome.invalid = invalid_output(scrub(body.error(), used), scrub(answer.body, used),
                                     sha256(kept), kept.size());
    return outcome;
  }
  outcome.external_id = scrub(external_id_of(*body), used);
  Value result = *std::move(body);
  if (rules.full_response) {
    result = Value::object({{"status", answer.status},
                            {"headers", headers_value(answer)},
                            {"body", std::move(result)}});
  }
  outcome.result = scrub_value(result, used);
  return outcome;
}

// Removes "after 3 ms" and the like, so that equal errors have equal texts.
std::string without_durations(std::string text) {
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

Outcome classify_status(const HttpResult& answer, const HttpRules& rules,
                        const std::vector<UsedSecret>& used) {
  const int status = answer.status;
  if (status >= 200 && status < 300) return classify_success(answer, rules, used);
  const bool has_no_effect = is_no_effect_status(status);
  const bool declared = std::ranges::count(rules.definite_failures, status) > 0;
  const bool definite = declared || has_no_effect;
  const bool retryable = status == 429 || (status >= 400 && !has_no_effect);
  const std::string target = rules.target.empty() ? "the server" : rules.target;
  const std::string text = error_text_in(answer, used), detail = text.empty() ? "" : ": " + text;
  Outcome outcome = make_outcome(definite ? OutcomeKind::failure : OutcomeKind::unknown, definite,
                                 retryable, fmt::format("http_{}", status),
                                 fmt::format("{} answered {}{}", target, status, detail));
  outcome.settled = !definite && answer.phase == HttpPhase::complete && is_settling_status(status);
  return outcome;
}

Outcome classify_phase(const HttpResult& answer, const HttpRules& rules,
                       const std::vector<UsedSecret>& used) {
  const std::string lead = rules.target.empty() ? "" : fmt::format("{}: ", rules.target);
  const auto definite_failure = [&](const char* code, bool retryable) {
    return make_outcome(OutcomeKind::failure, true, retryable, code,
                        lead + without_durations(scrub(answer.error, used)));
  };
  switch (answer.phase) {
    case HttpPhase::invalid:
      return definite_failure("request_invalid", false);
    case HttpPhase::not_sent:
      return definite_failure("not_sent", true);
    case HttpPhase::resolve_failed:
    case HttpPhase::connect_failed:
      return definite_failure("connect", true);
    case HttpPhase::tls_failed:
      return definite_failure("tls", true);
    case HttpPhase::complete:
      return classify_status(answer, rules, used);
    case HttpPhase::no_response:
    case HttpPhase::cut_off:
      break;
  }
  // We stopped reading at the limit; the status is known.
  if (answer.too_large) return classify_status(answer, rules, used);
  const std::string why = lead + without_durations(scrub(answer.error, used));
  if (answer.timed_out) return make_outcome(OutcomeKind::timeout, false, true, "timeout", why);
  return make_outcome(OutcomeKind::unknown, false, true, answer.cancelled ? "abandoned" : "reset",
                      why);
}

// Shows the text, not the raw bytes: a secret may be split between events, where scrub does not
// find it.
Outcome invalid_stream(const ReceivedStream& stream, const std::string& why,
                       const std::vector<UsedSecret>& used) {
  Outcome outcome;
  outcome.kind = OutcomeKind::success;
  outcome.invalid =
      invalid_output(scrub(why, used), stream.head, stream.hash.finish(), stream.bytes);
  return outcome;
}

Outcome classify_stream(const HttpResult& answer, const ReceivedStream& stream,
                        const HttpRules& rules, const std::vector<UsedSecret>& used) {
  const StreamReader& reader = stream.reader;
  const Error* const read_error = stream.read_error;
  if (reader.is_complete()) {
    const Value body = reader.body();
    if (canonical(body).size() > rules.output_max) {
      return invalid_stream(
          stream, fmt::format("the answer is larger than {} bytes", rules.output_max), used);
    }
    Outcome outcome;
    outcome.kind = OutcomeKind::success;
    outcome.external_id = scrub(external_id_of(body), used);
    outcome.result = scrub_value(body, used);
    return outcome;
  }
  if (answer.too_large) {
    return invalid_stream(
        stream, fmt::format("the streamed answer is larger than {} bytes", kStreamMax), used);
  }
  if (read_error != nullptr && read_error->code != Code::unavailable) {
    return invalid_stream(stream, read_error->message, used);
  }
  if (read_error != nullptr) {
    return make_outcome(OutcomeKind::unknown, false, true, reader.error_code(),
                        scrub(read_error->message, used));
  }
  if (answer.phase == HttpPhase::complete) {
    return make_outcome(OutcomeKind::unknown, false, true, reader.error_code(),
                        "the streamed answer stopped before its end");
  }
  return classify_phase(answer, rules, used);
}

}  // namespace

Outcome classify_stream_response(const HttpResult& answer, const ReceivedStream& stream,
                                 const HttpRules& rules, const std::vector<UsedSecret>& used) {
  Outcome outcome = classify_stream(answer, stream, rules, used);
  outcome.retry_after = answer.retry_after;
  outcome.elapsed = answer.elapsed;
  return outcome;
}

Outcome classify_response(const HttpResult& answer, const HttpRules& rules,
                          const std::vector<UsedSecret>& used) {
  Outcome outcome = classify_phase(answer, rules, used);
  outcome.retry_after = answer.retry_after;
  outcome.elapsed = answer.elapsed;
  return outcome;
}

}  // namespace ae::tools
