#include "tools/http/http_tool.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <map>
#include <optional>
#include <tuple>

#include "async/boot_clock.h"
#include "base/hash.h"
#include "json/json.h"
#include "log/field_names.h"
#include "tools/call_scope.h"

namespace ae::tools {
namespace {

using net::HttpCall;
using net::HttpResult;

constexpr Duration kConnectTimeout = std::chrono::seconds(10);
constexpr std::size_t kOutputLimit = 16u << 20;  // upper limit of output_max: SPEC §14
constexpr std::size_t kHeadersMax = 64;          // per definition

// Headers that we set, or that change how the message is parsed.
constexpr std::array<std::string_view, 17> kReservedHeaders = {"Idempotency-Key",
                                                               "X-Aetheris-Execution-Key",
                                                               "X-Aetheris-Invocation-Id",
                                                               "X-Aetheris-Try",
                                                               field::traceparent,
                                                               field::tracestate,
                                                               "Host",
                                                               "Content-Length",
                                                               "Connection",
                                                               "Transfer-Encoding",
                                                               "Expect",
                                                               "Upgrade",
                                                               "TE",
                                                               "Trailer",
                                                               "Keep-Alive",
                                                               "Accept-Encoding",
                                                               "Proxy-Authorization"};

std::unexpected<Error> bad(std::string message) {
  return fail(Code::plan_invalid, std::move(message));
}

bool is_word(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}

// Does the text contain the word `secret:NAME`? `at_end`: only at its very end, also with an empty
// name.
bool contains_secret_reference(std::string_view text, bool at_end) {
  constexpr std::string_view kMarker = "secret:";
  for (std::size_t at = 0; (at = text.find(kMarker, at)) != std::string_view::npos;) {
    const bool begins_word = at == 0 || !is_word(text[at - 1]);
    std::size_t end = at + kMarker.size();
    while (end < text.size() && is_word(text[end])) ++end;
    if (begins_word && (at_end ? end == text.size() : end > at + kMarker.size())) return true;
    at = end;
  }
  return false;
}

bool contains_secret_reference(const Value& value) {
  if (value.is_string()) return contains_secret_reference(value.as_string(), false);
  if (value.is_array()) {
    return std::ranges::any_of(value.items(),
                               [](const Value& v) { return contains_secret_reference(v); });
  }
  return value.is_object() && std::ranges::any_of(value.members(), [](const Member& m) {
           return contains_secret_reference(m.second);
         });
}

// Expressions of a tool see only the call, nothing else of the job.
Status check_roots(const ExprRoots& roots, std::string_view where) {
  for (const std::string& root : roots.roots) {
    if (root != "args" && root != "call") {
      return bad(
          fmt::format("{}: .{} is not available here; only .args and .call are", where, root));
    }
  }
  if (!roots.steps.empty() || roots.all_steps) {
    return bad(fmt::format("{}: .steps is not available here; pass it in args", where));
  }
  return {};
}

Status check_roots(const std::vector<Template::Part>& parts, std::string_view where) {
  for (const Template::Part& part : parts) {
    if (const auto* expression = std::get_if<Expr>(&part)) {
      AE_TRY(check_roots(expression->roots(), where));
    }
  }
  return {};
}

// The name of a secret must be literal: values of expressions come from models and other untrusted
// sources.
Status check_secret_words(const std::vector<Template::Part>& parts, const std::string& where) {
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const auto* literal = std::get_if<std::string>(&parts[i]);
    if (literal == nullptr) continue;
    const bool joined_before = i > 0 && literal->starts_with("secret:");
    const bool joined_after = i + 1 < parts.size() && contains_secret_reference(*literal, true);
    if (joined_before || joined_after) {
      return bad(
          fmt::format("{}: put a space or punctuation between secret:NAME and ${{ }}", where));
    }
  }
  return {};
}

Result<std::size_t> size_of(const Value& value) {
  const auto wrong = [] {
    return bad("output_max: it must be a size of 1 to 16MiB, such as 1048576 or \"1MiB\"");
  };
  std::uint64_t size = 0;
  if (value.is_integer() && value.as_int() > 0) {
    size = static_cast<std::uint64_t>(value.as_int());
  } else if (value.is_string()) {
    const std::string& text = value.as_string();
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), size);
    if (error != std::errc() || size > kOutputLimit) return wrong();
    const std::string_view unit(end, static_cast<std::size_t>(text.data() + text.size() - end));
    if (!unit.empty() && unit != "KiB" && unit != "MiB" && unit != "GiB") return wrong();
    size <<= unit.empty() ? 0 : unit == "KiB" ? 10 : unit == "MiB" ? 20 : 30;
  }
  if (size == 0 || size > kOutputLimit) return wrong();
  return static_cast<std::size_t>(size);
}

constexpr std::size_t kTargetShown = 120;  // bytes

// "GET example.com/orders/7": without scheme and query. Scrubbed before it is cut, so that no part
// of a secret remains.
std::string target_of(const HttpCall& http, const std::vector<UsedSecret>& used) {
  std::string_view url = http.url;
  if (const std::size_t scheme = url.find("://"); scheme != url.npos) url.remove_prefix(scheme + 3);
  const std::string shown = scrub(url.substr(0, url.find('?')), used);
  const bool whole = shown.size() <= kTargetShown;
  return fmt::format("{} {}{}", http.method, shown.substr(0, kTargetShown), whole ? "" : "…");
}

bool is_json_type(std::string_view type) {
  const std::string_view media = type.substr(0, type.find_first_of("; \t"));
  constexpr std::string_view kSuffix = "+json";
  return net::equal_ignoring_case(media, "application/json") ||
         (media.size() > kSuffix.size() &&
          net::equal_ignoring_case(media.substr(media.size() - kSuffix.size()), kSuffix));
}

}  // namespace

struct HttpTool::Request {
  HttpCall http;
  std::vector<UsedSecret> used;
};

// Parses and forwards a streamed response.
struct HttpTool::Stream {
  std::shared_ptr<StreamReader> reader;
  async::Task stop_reading;  // stops the transfer; called once
  std::move_only_function<void(TextDelta)> on_text_delta;
  ScrubbedStream scrubber;
  std::unique_ptr<Sha256> hash = std::make_unique<Sha256>();  // of all bytes
  std::size_t bytes = 0;                                      // received
  std::size_t text_bytes = 0;                                 // emitted text, in bytes
  std::string head;                                           // beginning of that text
  bool has_begun = false;
  std::optional<Error> read_error;

  void feed(std::string_view more) {
    has_begun = true;
    hash->add(more);
    bytes += more.size();
    if (read_error) return;
    std::string words;
    if (auto fed = reader->feed(more, words); !fed) read_error = std::move(fed).error();
    emit_text(scrubber.feed(words));
    if (reader->is_complete()) emit_text(scrubber.end());
    // Do not wait for a server that keeps the connection open after the end.
    if ((read_error || reader->is_complete()) && stop_reading)
      std::exchange(stop_reading, nullptr)();
  }
  void emit_text(std::string text) {
    if (head.size() < kHeadMax) head += text.substr(0, 4 * kHeadMax);
    const std::size_t at = std::exchange(text_bytes, text_bytes + text.size());
    if (text.empty() || !on_text_delta) return;
    on_text_delta({.offset = at, .text = std::move(text)});
  }
};

struct HttpTool::InFlightCalls {
  using Key = std::pair<InvocationId, std::uint32_t>;
  net::HttpClient* client;  // nullptr: the tool is destroyed, and perhaps the client
  std::map<Key, net::HttpClient::Id> in_flight = {};

  void cancel(const Key& key) {
    const auto found = in_flight.find(key);
    if (found != in_flight.end() && client != nullptr) client->cancel(found->second);
  }
};

HttpTool::HttpTool(Dependencies deps)
    : deps_(deps), calls_(std::make_shared<InFlightCalls>(InFlightCalls{.client = &deps.client})) {}
HttpTool::~HttpTool() { calls_->client = nullptr; }

Result<std::unique_ptr<HttpTool>> HttpTool::make(const Value& definition, Dependencies deps) {
  std::unique_ptr<HttpTool> tool(new HttpTool(deps));
  AE_TRY(tool->read(definition));
  return tool;
}

// ---- the definition

Status HttpTool::read(const Value& definition) {
  if (!definition.is_object()) return bad("an http tool is an object with at least a url");
  constexpr std::array<std::string_view, 8> kKeys = {
      "method",      "url",     "headers",    "body",
      field::result, "numbers", "output_max", "definite_failures"};
  for (const auto& [key, value] : definition.members()) {
    if (std::ranges::count(kKeys, key) == 0) {
      return fail(Code::unsupported, "an http tool has no key \"{}\"", key);
    }
  }
  if (const Value* method = definition.find("method")) {
    constexpr std::array<std::string_view, 7> kMethods = {"GET",   "HEAD",   "POST",   "PUT",
                                                          "PATCH", "DELETE", "OPTIONS"};
    if (!method->is_string() || std::ranges::count(kMethods, method->as_string()) == 0) {
      return bad("method: it must be GET, HEAD, POST, PUT, PATCH, DELETE or OPTIONS");
    }
    method_ = method->as_string();
  }
  if (!definition["url"].is_string()) return bad("url: it is missing");
  const std::string& url = definition["url"].as_string();
  if (contains_secret_reference(url, false))
    return bad("url: secret:NAME is allowed in headers only");
  AE_ASSIGN(url_, UrlTemplate::parse(url));
  AE_TRY(check_roots(url_.parts(), "url"));
  if (const Value* headers = definition.find("headers")) AE_TRY(read_headers(*headers));
  if (const Value* body = definition.find("body")) {
    if (method_ == "GET" || method_ == "HEAD")
      return bad(fmt::format("body: {} has none", method_));
    if (contains_secret_reference(*body))
      return bad("body: secret:NAME is allowed in headers only");
    auto compiled = Template::compile(*body);
    if (!compiled) return std::unexpected(std::move(compiled.error()).with_context("body"));
    AE_TRY(check_roots(compiled->roots(), "body"));
    body_ = *std::move(compiled);
  }
  return read_rules(definition);
}

Status HttpTool::read_headers(const Value& headers) {
  if (!headers.is_object()) return bad("headers: it must be an object of names and texts");
  if (headers.size() > kHeadersMax) return bad("headers: at most 64");
  for (const auto& [name, value] : headers.members()) {
    const std::string where = "headers." + name;
    const auto same = [&](std::string_view other) { return net::equal_ignoring_case(name, other); };
    if (!net::is_header_name(name)) return bad(fmt::format("{}: this is not a header name", where));
    if (std::ranges::any_of(kReservedHeaders, same))
      return bad(fmt::format("{}: Aetheris sets this one itself", where));
    if (std::ranges::any_of(headers_, [&](const Header& h) { return same(h.name); })) {
      return bad(fmt::format("{}: duplicate header", where));
    }
    if (!value.is_string()) return bad(fmt::format("{}: it must be a text", where));
    auto parts = Template::parts(value.as_string());
    if (!parts) return std::unexpected(std::move(parts.error()).with_context(where));
    AE_TRY(check_roots(*parts, where));
    AE_TRY(check_secret_words(*parts, where));
    if (same("Content-Type")) {
      has_content_type_ = true;
      body_is_json_ = is_json_type(value.as_string());
    }
    headers_.push_back({name, *std::move(parts)});
  }
  return {};
}

Status HttpTool::read_rules(const Value& definition) {
  if (const Value* result = definition.find(field::result)) {
    if (*result != Value("full") && *result != Value("body")) {
      return bad("result: it must be full or body");
    }
    rules_.full_response = *result == Value("full");
  }
  if (const Value* numbers = definition.find("numbers")) {
    if (*numbers != Value("string")) return bad("numbers: it can only be string");
    rules_.big_integers_as_strings = true;
  }
  if (const Value* output_max = definition.find("output_max")) {
    AE_ASSIGN(rules_.output_max, size_of(*output_max));
  }
  if (const Value* statuses = definition.find("definite_failures")) {
    const auto fits = [](const Value& s) {
      return s.is_integer() && s.as_int() >= 300 && s.as_int() <= 599;
    };
    if (!statuses->is_array() || !std::ranges::all_of(statuses->items(), fits)) {
      return bad("definite_failures: it must be a list of statuses from 300 to 599");
    }
    for (const Value& status : statuses->items()) {
      rules_.definite_failures.push_back(static_cast<int>(status.as_int()));
    }
  }
  return {};
}

// ---- a call

Result<std::string> HttpTool::make_body(const ExprScope& scope, const Call& call) const {
  if (!body_) return canonical(call.args);
  auto filled = body_->eval(scope);
  if (!filled) {
    Error error = std::move(filled).error();
    if (const auto failure = body_->failure(scope)) error.message = failure->text("http.body");
    return std::unexpected(std::move(error));
  }
  const Value value = *std::move(filled);
  // Under a Content-Type other than JSON, a string is the body itself: a form, a line of CSV.
  if (value.is_string() && !body_is_json_) return value.as_string();
  return canonical(value);
}

Status HttpTool::make_request(const Call& call, SecretSource& secrets, Request& request) const {
  const CallScope scope(call);
  HttpCall& http = request.http;
  http.method = method_;
  auto url = url_.render(scope);
  if (!url) return std::unexpected(std::move(url).error().with_context("http.url"));
  http.url = *std::move(url);
  http.headers = {{"Idempotency-Key", call.external_key.text},
                  {"X-Aetheris-Execution-Key", call.key.text},
                  {"X-Aetheris-Invocation-Id", call.invocation.text},
                  {"X-Aetheris-Try", std::to_string(call.try_no)}};
  auto [traceparent, tracestate] = call.trace_headers();
  if (!traceparent.empty()) http.headers.push_back({field::traceparent, std::move(traceparent)});
  if (!tracestate.empty()) http.headers.push_back({field::tracestate, std::move(tracestate)});
  if (method_ != "GET" && method_ != "HEAD") {
    AE_ASSIGN(http.body, make_body(scope, call));
    if (!has_content_type_) http.headers.push_back({"Content-Type", "application/json"});
  }
  for (const Header& header : headers_) {
    std::string value;
    for (const Template::Part& part : header.value) {
      if (const auto* expression = std::get_if<Expr>(&part)) {
        auto text = render_expression(*expression, scope);
        if (!text)
          return std::unexpected(
              std::move(text).error().with_context("http.headers." + header.name));
        value += *text;
      } else {
        AE_ASSIGN(const Secret text,
                  replace_secrets(std::get<std::string>(part), secrets, request.used));
        value += text.reveal();
      }
    }
    if (!net::is_header_value(value)) {
      return fail(Code::input_invalid,
                  "the value of header {} holds a line break or a control character", header.name);
    }
    http.headers.push_back({header.name, std::move(value)});
  }
  secrets.add_known(request.used);
  http.new_connection = !deps_.is_read_only;
  http.total_timeout = call.timeout;
  // Less than send_within: an unreachable server must fail with `connect`, which counts as a try.
  // `not_sent` does not count and would be retried without limit.
  http.connect_timeout = std::min({kConnectTimeout, call.timeout, call.send_within * 3 / 4});
  http.response_max = rules_.output_max;
  if (!request.used.empty()) http.response_max = std::max(http.response_max, kScrubWindow);
  if (call.reader) http.response_max = std::max(http.response_max, kStreamMax);
  return {};
}

void HttpTool::perform(Permit permit, Call call, async::Done<Outcome> done) {
  const Duration began_at = async::BootClock().since_start();
  Request request;
  if (auto made = make_request(call, deps_.secrets, request); !made) {
    Outcome outcome;
    outcome.kind = OutcomeKind::failure;
    outcome.definite = true;
    const bool no_secret =
        made.error().code == Code::secret_missing || made.error().code == Code::forbidden;
    outcome.error_code = no_secret ? "secret_missing" : "request_invalid";
    outcome.error_message = scrub(made.error().message, request.used);
    deps_.loop.post([done = std::move(done), outcome = std::move(outcome)]() mutable {
      done(std::move(outcome));
    });
    return;
  }
  const InFlightCalls::Key key{call.invocation, call.try_no};
  std::move(permit).consume(call.invocation, call.try_no);
  request.http.send_within = call.send_within - (async::BootClock().since_start() - began_at);
  std::shared_ptr<Stream> stream;  // shared by the two callbacks of the response
  if (call.reader) {
    stream = std::make_shared<Stream>(
        Stream{.reader = std::move(call.reader),
               .stop_reading = [calls = calls_, key] { calls->cancel(key); },
               .on_text_delta = std::move(call.on_text_delta),
               .scrubber = ScrubbedStream(request.used)});
    request.http.keep_event_body = false;
    request.http.on_event_bytes = [stream](const net::HttpHeaders&, const std::string& bytes) {
      stream->feed(bytes);
    };
  }
  HttpRules rules = rules_;
  rules.json_only = stream != nullptr;  // model APIs answer in JSON, streamed or not
  if (!stream) rules.target = target_of(request.http, request.used);
  const auto id = deps_.client.start(
      std::move(request.http),
      [calls = calls_, key, rules = std::move(rules), stream, done = std::move(done),
       used = std::make_shared<const std::vector<UsedSecret>>(std::move(request.used))](
          const HttpResult& answer) mutable {
        calls->in_flight.erase(key);
        if (!stream) return done(classify_response(answer, rules, *used));
        stream->on_text_delta = nullptr;
        stream->reader->scrub_joined = [used](const Value& value) {
          return scrub_value(value, *used);
        };
        if (!stream->has_begun) return done(classify_response(answer, rules, *used));
        done(classify_stream_response(
            answer,
            {.reader = *stream->reader,
             .read_error = stream->read_error ? &*stream->read_error : nullptr,
             .head = stream->head,
             .hash = *stream->hash,
             .bytes = stream->bytes},
            rules, *used));
      });
  calls_->in_flight.insert_or_assign(key, id);
}

Result<Value> HttpTool::preview(const Call& call) {
  SecretNames names;
  Request request;
  AE_TRY(make_request(call, names, request));
  std::vector<Member> headers;
  for (const auto& header : request.http.headers) {
    const bool ours = header.name == "Idempotency-Key" || header.name.starts_with("X-Aetheris-");
    if (!ours) headers.emplace_back(header.name, header.value);
  }
  std::vector<Member> sends{{"method", request.http.method}, {"url", request.http.url}};
  if (!headers.empty()) sends.emplace_back("headers", Value::object(std::move(headers)));
  if (!request.http.body.empty()) sends.emplace_back("body", request.http.body);
  return Value::object(std::move(sends));
}

void HttpTool::abandon(const InvocationId& invocation, std::uint32_t try_no) {
  calls_->cancel({invocation, try_no});
}

}  // namespace ae::tools
