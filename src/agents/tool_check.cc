// Tools of an agents file: one transport each, and the policy that the engine follows.
#include <algorithm>
#include <charconv>

#include "agents/change_check.h"
#include "agents/check.h"
#include "agents/condition_check.h"
#include "agents/tool_text.h"
#include "base/ascii.h"
#include "base/hash.h"
#include "base/http_status.h"
#include "engine/heart/recorded_value.h"
#include "json/json.h"

namespace ae::agents {
namespace {

using engine::EffectClass;
using engine::OnInDoubt;

constexpr std::uint64_t kOutputMax = 16u << 20;
constexpr std::uint64_t kServerOutputMax = 4u << 20;  // a message of MCP has no more
constexpr std::size_t kWordsMax = 1'000;  // of a command, env, retry_on, definite_failures
constexpr std::uint64_t kSandboxBytesMax = std::uint64_t{1} << 40;
constexpr std::uint32_t kSandboxCountMax = 1'000'000;
constexpr Duration kHeartbeatLeast = std::chrono::milliseconds(100);

std::string lower(std::string_view text) {
  std::string out(text);
  for (char& c : out) c = static_cast<char>(c >= 'A' && c <= 'Z' ? c | 0x20 : c);
  return out;
}

class ToolCheck {
 public:
  ToolCheck(Check& check, std::string_view name, const Spot& spot, const ServerTool* of = nullptr)
      : check_(check), text_(check), spot_(spot), of_(of) {
    checked_.tool.name = name;
    checked_.tool.policy.name = name;
  }

  CheckedTool run() {
    const std::size_t before = check_.count();
    if (of_ || check_.mapping(spot_, {"description",      "http",         "command",
                                      "native",           "mcp",          "effect",
                                      "timeout",          "retry",        "on_in_doubt",
                                      "dedupe_window",    "grace",        "definite_failures",
                                      "args_schema",      "output",       "result",
                                      "numbers",          "output_max",   "env",
                                      "env_allow",        "cwd",          "approval",
                                      "approval_expires", "probe",        "compensate",
                                      "changes",          "verify",       "heartbeat_timeout",
                                      "result_schema",    "capabilities", "local",
                                      "sandbox"})) {
      if (const auto description = spot_.find("description")) {
        checked_.description = check_.text(*description).value_or("");
      }
      recorded();
      policy();
      transport();
      retry();
      side_calls();
      const bool reads = effect_known_ && checked_.tool.policy.effect == EffectClass::read;
      changes_ = check_changes(check_, spot_, reads);
    }
    if (check_.count() == before) approved_arguments();
    checked_.good = check_.count() == before;
    if (checked_.good) finish();
    return std::move(checked_);
  }

  // How an MCP server is reached; `spot_` is the value of `mcp`.
  Value connection() {
    const bool program = spot_->find("command") != nullptr;
    if (!check_.mapping(spot_, program ? Words{"command", "env", "env_allow", "cwd", "sandbox"}
                                       : Words{"command", "url", "headers"})) {
      return {};
    }
    if (program) {
      command(*spot_.find("command"));
    } else if (const auto target = check_.required(
                   spot_, "url",
                   "set `command` (to start a server) or `url` (to connect to one)")) {
      if (auto text = text_.resolved(*target, Secrets::refused)) {
        text_.url(*target, *text);
        put("url", *std::move(text));
      }
      std::vector<Member> members;
      if (const auto list = spot_.find("headers")) headers(*list, members);
      for (Member& member : members) put(member.first, std::move(member.second));
    }
    Value whole = Value::object(std::move(definition_));
    if (whole["headers"].is_object()) {
      for (const auto& [name, text] : whole["headers"].members()) {
        if (!of_the_protocol(lower(name))) continue;
        check_.fault(spot_, "the header " + shown(name) + " is set by the protocol; remove it");
      }
    }
    if (holds_expression(whole)) {
      check_.fault(spot_, "server settings can read env. only, not the arguments of a call");
    }
    return whole;
  }

 private:
  static bool of_the_protocol(std::string_view name) {
    return name.starts_with("mcp-") || name == "accept" || name == "content-type" ||
           name == "last-event-id";
  }

  static bool holds_expression(const Value& value) {
    if (value.is_string()) return has_expression(value.as_string());
    if (value.is_array()) return std::ranges::any_of(value.items(), holds_expression);
    return value.is_object() && std::ranges::any_of(value.members(), [](const Member& member) {
             return holds_expression(member.second);
           });
  }

  // ---- time, chance and ids

  // The functions whose value is recorded without a call: nothing that is said of calls has a meaning for them.
  void recorded() {
    using engine::Records;
    const auto spot = of_ ? std::nullopt : spot_.find("native");
    if (!spot || !(*spot)->is_string()) return;
    const std::string& name = (*spot)->scalar.as_string();
    Records& records = checked_.tool.policy.records;
    if (name == "now") records = Records::time;
    if (name == "random") records = Records::random;
    if (name == "uuid") records = Records::uuid;
    if (records == Records::nothing) return;
    for (const std::string_view key :
         {"timeout", "retry", "on_in_doubt", "dedupe_window", "grace", "args_schema",
          "result_schema", "probe", "compensate", "changes", "verify", "heartbeat_timeout"}) {
      if (const auto other = spot_.find(key)) {
        check_.fault(*other, "`" + std::string(key) + "` does not apply: `" + name +
                                 "` makes no call; remove it");
      }
    }
    if (const auto effect = spot_.find("effect");
        effect && !((*effect)->is_string() && (*effect)->scalar.as_string() == "read")) {
      check_.fault(*effect, "`" + name + "` makes no call and is always `effect: read`");
    }
  }

  // ---- policy

  void policy() {
    engine::ToolPolicy& policy = checked_.tool.policy;
    if (const auto effect = spot_.find("effect")) {
      if (const auto word = check_.word(*effect, {"read", "idempotent", "at_most_once"})) {
        policy.effect = static_cast<EffectClass>(*word);
      } else {
        effect_known_ = false;
      }
    }
    if (!policy.makes_call()) policy.effect = EffectClass::read;
    policy.on_in_doubt =
        policy.effect == EffectClass::at_most_once ? OnInDoubt::park : OnInDoubt::resend;
    if (const auto in_doubt = spot_.find("on_in_doubt")) {
      if (const auto word = check_.word(*in_doubt, {"resend", "park", "fail", "probe"})) {
        policy.on_in_doubt = static_cast<OnInDoubt>(*word);
        if (effect_known_ && policy.effect == EffectClass::at_most_once &&
            policy.on_in_doubt == OnInDoubt::resend) {
          check_.fault(
              *in_doubt,
              "an at_most_once call is never resent: use park or fail, or set effect: idempotent "
              "if the service deduplicates by key");
        }
      }
    }
    if (const auto timeout = spot_.find("timeout")) {
      policy.timeout = check_.duration(*timeout, kDurationLeast).value_or(policy.timeout);
    }
    if (const auto grace = spot_.find("grace")) {
      policy.grace = check_.duration(*grace, Duration(0)).value_or(policy.grace);
    }
    if (const auto window = spot_.find("dedupe_window")) {
      if ((*window)->is_string() && (*window)->scalar.as_string() == "unlimited") {
        policy.dedupe_window = std::nullopt;
      } else {
        policy.dedupe_window = check_.duration(*window, kDurationLeast);
      }
    }
    if (const auto schema = spot_.find("args_schema")) {
      policy.args_schema = check_.schema(*schema);
    }
    if (const auto schema = spot_.find("result_schema")) {
      policy.result_schema = check_.schema(*schema);
    }
    if (!policy.makes_call()) {
      auto schema = Schema::compile(engine::args_schema_of(policy.records));
      AE_CHECK(schema.has_value(), "a schema of this program");
      policy.args_schema = *std::move(schema);
    }
    approval();
    if (const auto expires = of_ ? spot_.find("ask_expires") : std::nullopt) {
      if (const auto span = check_.duration(*expires, kDurationLeast)) {
        approval_.emplace_back("ask_expires", to_text(*span));
      }
    }
    if (const auto can = spot_.find("capabilities")) {
      const auto names = check_capabilities(check_, *can);
      capabilities_.assign(names.begin(), names.end());
      checked_.tool.policy.capabilities = names;
    }
  }

  // Who is asked before a call, and for how long.
  void approval() {
    const auto spot = spot_.find("approval");
    bool asks = false;
    if (spot) {
      const bool text = (*spot)->is_string();
      if (text && has_expression((*spot)->scalar.as_string())) {
        asks = condition(*spot);
      } else if (const auto word = check_.word(*spot, {"never", "required"})) {
        asks = *word == 1;
      } else {
        return;
      }
      if (asks) approval_.emplace_back("approval", (*spot)->scalar);
    }
    const auto expires = spot_.find("approval_expires");
    if (!expires) return;
    if (!spot) check_.fault(*expires, "`approval_expires` needs `approval`");
    if (const auto span = check_.duration(*expires, kDurationLeast); span && asks) {
      approval_.emplace_back("approval_expires", to_text(*span));
    }
  }

  bool condition(const Spot& spot) {
    const std::size_t before = check_.count();
    refuse_env_and_secrets(check_, spot);
    if (check_.count() != before) return false;
    check_.templates(spot, [this](const Spot& string, const Template& compiled) {
      const ExprRoots& read = compiled.roots();
      for (const std::string& root : read.roots) {
        if (root == "args") continue;
        check_.root_fault(string, "." + root, "`approval` can read .args only");
      }
    });
    if (check_.count() != before) return false;
    if (is_one_expression(*spot.value)) return true;
    check_.fault(spot, "`approval` must be never, required or a single ${ … } over .args");
    return false;
  }

  // Does it take what its own condition looks up? Of a server's tools their server's entry asks (mcp_check.cc).
  void approved_arguments() {
    const auto condition = spot_.find("approval");
    const auto schema = spot_.find("args_schema");
    const bool records = !checked_.tool.policy.makes_call();
    if (of_ != nullptr || !condition || (!schema && !records)) return;
    const Value taken =
        records ? engine::args_schema_of(checked_.tool.policy.records) : (*schema)->value();
    check_condition(check_, *condition, {{.name = checked_.tool.name, .args_schema = &taken}},
                    nullptr);
  }

  // ---- calls about a call

  void side_calls() {
    const OnInDoubt in_doubt = checked_.tool.policy.on_in_doubt;
    const bool reads = effect_known_ && checked_.tool.policy.effect == EffectClass::read;
    if (const auto probe = spot_.find("probe")) {
      if (in_doubt != OnInDoubt::probe) {
        check_.fault(*probe, "`probe` needs `on_in_doubt: probe`");
      } else if (reads) {
        check_.fault(*probe, "`probe` is not allowed with `effect: read`");
      }
      checked_.probe = side_call(*probe, {"tool", "args", "happened"}, {"args", "call"}, probe_);
      if (const auto happened =
              check_.required(*probe, "happened",
                              "a single ${ … } over .result; null means the call did not happen")) {
        if (reads_only(check_, *happened, {"args", "call", "result"}) &&
            !is_one_expression(*happened->value)) {
          check_.fault(*happened,
                       "`happened` must be a single ${ … }; null means the call did not happen");
        }
        probe_.emplace_back("happened", (*happened)->value());
      }
    } else if (in_doubt == OnInDoubt::probe) {
      check_.fault(*spot_.find("on_in_doubt"),
                   "on_in_doubt: probe needs `probe: { tool, args, happened }`");
    }
    if (const auto undo = spot_.find("compensate")) {
      if (reads) check_.fault(*undo, "`compensate` is not allowed with `effect: read`");
      checked_.compensate =
          side_call(*undo, {"tool", "args"}, {"args", "call", "result"}, compensate_);
    }
  }

  // The place where it names its tool.
  std::optional<Spot> side_call(const Spot& spot, Words keys, Words roots,
                                std::vector<Member>& members) {
    if (!check_.mapping(spot, keys)) return std::nullopt;
    const auto named = check_.required(spot, "tool", "the name of a tool of this file");
    const auto name = named ? check_.text(*named) : std::nullopt;
    if (name) members.emplace_back("tool", *name);
    if (const auto args = spot.find("args")) {
      if (reads_only(check_, *args, roots) && !(*args)->is_mapping() &&
          !is_one_expression(*args->value)) {
        check_.fault(*args,
                     "`args` must be a mapping, or a single ${ … } that evaluates to an object");
      }
      if (!((*args)->is_mapping() && (*args)->items.empty())) {
        members.emplace_back("args", (*args)->value());
      }
    }
    return name ? named : std::nullopt;
  }

  void retry() {
    engine::ToolPolicy& policy = checked_.tool.policy;
    const auto spot = spot_.find("retry");
    const bool reads = effect_known_ && policy.effect == EffectClass::read && policy.makes_call();
    if (!spot) {
      if (reads) policy.retry = default_read_retry();
      return;
    }
    const bool once = effect_known_ && policy.effect == EffectClass::at_most_once;
    check_retry(check_, *spot, version_retry_,
                [&](std::string_view entry) { return !once || is_definite(entry); });
    policy.retry = reads ? read_retry(*spot, version_retry_) : version_retry_;
  }

  // SPEC §6: for sure nothing happened.
  bool is_definite(std::string_view entry) const {
    for (const std::string_view word :
         {"connect", "tls", "not_sent", "spawn_failed", "request_invalid", "secret_missing"}) {
      if (entry == word) return true;
    }
    if (checked_.tool.kind == "command") return entry.starts_with("exit_");
    if (of_ && (entry == "tool_error" || entry == "rpc_refused" || entry == "input_required"))
      return true;
    if (checked_.tool.kind ==
        "native") {  // its own codes; only their kind is known when it answers
      return entry != "timeout" && entry != "unknown" && entry != "killed" && !is_digit(entry[0]);
    }
    const std::string_view status = entry.starts_with("http_") ? entry.substr(5) : entry;
    if (status.size() != 3 || !std::ranges::all_of(status, is_digit)) return false;
    const int number = std::stoi(std::string(status));
    if (std::ranges::find(definite_, number) != definite_.end()) return true;
    return says_nothing_happened(number);
  }

  // ---- transports

  void transport() {
    if (of_) return of_a_server();
    std::vector<std::string_view> kinds;
    for (const std::string_view kind : {"http", "command", "native"}) {
      if (spot_->find(kind) != nullptr) kinds.push_back(kind);
    }
    if (kinds.empty()) {
      check_.fault(spot_, "a tool needs one of http, command, native or mcp");
      return;
    }
    if (kinds.size() > 1) {
      check_.fault(spot_,
                   "a tool can have only one of http, command, native and mcp; this one has " +
                       std::string(kinds[0]) + " and " + std::string(kinds[1]));
    }
    checked_.tool.kind = kinds[0];
    only_for("http", {"result", "definite_failures"});
    only_for("command", {"output", "env", "env_allow", "cwd", "sandbox"});
    if (kinds[0] == "native") only_for("", {"numbers", "output_max"});
    if (const auto failures = spot_.find("definite_failures"); failures && kinds[0] == "http") {
      definite_failures(*failures);
    }
    if (const auto http_spot = spot_.find("http")) http(*http_spot);
    if (const auto command_spot = spot_.find("command")) command(*command_spot);
    if (const auto native_spot = spot_.find("native")) native(*native_spot);
    shape_of_output();
    heartbeat();
    local();
  }

  // A program that sends nothing off the machine: when its process group has ended, all that it did is done.
  void local() {
    const auto spot = spot_.find("local");
    if (!spot) return;
    if (checked_.tool.kind != "command") {
      return check_.fault(
          *spot,
          "`local` is for command tools only: other calls can take effect after the "
          "process has ended");
    }
    checked_.tool.policy.local = check_.boolean(*spot).value_or(false);
  }

  void of_a_server() {
    checked_.tool.kind = "mcp";
    put("server", of_->server);
    put("connection", of_->connection);
    put("tool", of_->pinned["name"]);
    put("digest", of_->pinned["digest"]);
    if (const auto most = spot_.find("output_max")) {
      if (const auto bytes = check_.size(*most, kServerOutputMax)) put("output_max", *bytes);
    }
  }

  // How long it may report nothing. Part of how it is reached: the plan does not hold it.
  void heartbeat() {
    const auto spot = spot_.find("heartbeat_timeout");
    if (!spot) return;
    if (checked_.tool.kind == "http") {
      return check_.fault(*spot,
                          "`heartbeat_timeout` is for command and native tools; for http tools use "
                          "`timeout`");
    }
    const auto silence = check_.duration(*spot, kHeartbeatLeast);
    if (!silence) return;
    const Duration timeout = checked_.tool.policy.timeout;
    if (*silence >= timeout) {
      return check_.fault(*spot, "must be shorter than `timeout` (" + to_text(timeout) + ")");
    }
    put("heartbeat_timeout", to_text(*silence));
  }

  void only_for(std::string_view kind, Words keys) {
    if (checked_.tool.kind == kind) return;
    for (const std::string_view key : keys) {
      const auto spot = spot_.find(key);
      if (!spot) continue;
      check_.fault(*spot, kind.empty() ? "`" + std::string(key) + "` is not for native tools"
                                       : "`" + std::string(key) + "` is for " + std::string(kind) +
                                             " tools only");
    }
  }

  void put(std::string_view key, Value value) { definition_.emplace_back(key, std::move(value)); }

  void shape_of_output() {
    if (const auto result = spot_.find("result")) {
      if (const auto word = check_.word(*result, {"body", "full"}); word && *word == 1) {
        put("result", "full");
      }
    }
    bool json = checked_.tool.kind == "http";
    if (const auto output = spot_.find("output")) {
      if (const auto word = check_.word(*output, {"text", "json"}); word && *word == 1) {
        put("output", "json");
        json = true;
      }
    }
    if (const auto numbers = spot_.find("numbers"); numbers && checked_.tool.kind != "native") {
      if (check_.word(*numbers, {"string"})) put("numbers", "string");
      if (!json) check_.fault(*numbers, "`numbers` needs `output: json`");
    }
    if (const auto most = spot_.find("output_max"); most && checked_.tool.kind != "native") {
      if (const auto bytes = check_.size(*most, kOutputMax)) put("output_max", *bytes);
    }
  }

  void definite_failures(const Spot& spot) {
    if (!check_.list(spot) || !short_enough(spot)) return;
    std::vector<Value> statuses;
    for (std::size_t i = 0; i < spot->items.size(); ++i) {
      const Spot item = spot.item(i);
      const Value& number = item->scalar;
      if (!number.is_integer() || number.as_int() < 300 || number.as_int() > 599) {
        check_.fault(item, "must be an HTTP status from 300 to 599");
        continue;
      }
      definite_.push_back(static_cast<int>(number.as_int()));
      statuses.push_back(number);
    }
    put("definite_failures", Value::array(std::move(statuses)));
  }

  void http(const Spot& spot) {
    if (!check_.mapping(spot, {"method", "url", "headers", "body"})) return;
    std::vector<Member> members;
    const Words methods = {"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"};
    if (const auto method = check_.required(spot, "method", "one of " + list_of(methods))) {
      if (const auto word = check_.word(*method, methods)) {
        members.emplace_back("method", methods.begin()[*word]);
      }
    }
    if (const auto body = spot.find("body")) this->body(*body, members);
    if (const auto target = check_.required(spot, "url", "http://… or https://…")) {
      if (auto text = text_.resolved(*target, Secrets::refused)) {
        text_.url(*target, *text);
        members.emplace_back("url", *std::move(text));
      }
    }
    if (const auto list = spot.find("headers")) headers(*list, members);
    for (Member& member : members) put(member.first, std::move(member.second));
  }

  void body(const Spot& spot, std::vector<Member>& members) {
    const std::string method = members.empty() ? "" : members[0].second.as_string();
    if (method == "GET" || method == "HEAD") {
      check_.fault(spot, method + " requests cannot have a body");
    }
    if (auto value = text_.resolved_value(spot)) members.emplace_back("body", *std::move(value));
  }

  void headers(const Spot& spot, std::vector<Member>& members) {
    if (!check_.any_mapping(spot)) return;
    if (spot->items.size() > kHeadersMax) {
      check_.fault(spot, "at most 64 headers");
      return;
    }
    std::vector<Member> headers;
    std::vector<std::string> names;
    for (std::size_t i = 0; i < spot->items.size(); ++i) {
      const Located::Key& key = spot->keys[i];
      const Spot value{&spot->items[i], spot.path_of(key.text)};
      const std::string name = lower(key.text);
      if (!is_header_name(key.text)) {
        check_.fault_at(key.at, value.path, shown(key.text) + " is not a valid header name");
      } else if (ours(name)) {
        check_.fault_at(key.at, value.path,
                        "the header " + shown(key.text) + " is set by the runtime; remove it");
      } else if (std::ranges::find(names, name) != names.end()) {
        check_.fault_at(key.at, value.path, "duplicate header " + shown(key.text));
      }
      names.push_back(name);
      auto text = text_.resolved(value, Secrets::replaced);
      if (!text) continue;
      if (text->find_first_of(std::string_view("\r\n\0", 3)) != text->npos) {
        check_.fault(value, "a header value cannot contain a line break or NUL");
      }
      headers.emplace_back(key.text, *std::move(text));
    }
    members.emplace_back("headers", as_object(std::move(headers)));
  }

  static bool ours(std::string_view name) {
    constexpr std::string_view kOurs[] = {"host",       "content-length",  "transfer-encoding",
                                          "connection", "idempotency-key", "te",
                                          "trailer",    "expect",          "keep-alive",
                                          "upgrade",    "accept-encoding", "proxy-authorization"};
    return name.starts_with("x-aetheris-") || std::ranges::find(kOurs, name) != std::end(kOurs);
  }

  // Twins are faults already; a Value cannot hold them.
  static Value as_object(std::vector<Member> members) {
    std::ranges::stable_sort(members, {}, &Member::first);
    const auto twins = std::ranges::unique(members, {}, &Member::first);
    members.erase(twins.begin(), twins.end());
    return Value::object(std::move(members));
  }

  void command(const Spot& spot) {
    if (check_.list(spot) && short_enough(spot)) argv(spot);
    if (const auto env = spot_.find("env")) environment(*env);
    if (const auto allow = spot_.find("env_allow")) env_allow(*allow);
    if (const auto box = spot_.find("sandbox")) sandbox(*box);
    if (const auto cwd = spot_.find("cwd")) {
      if (auto text = text_.literal(*cwd)) {
        if (text->empty()) check_.fault(*cwd, "must be a folder path");
        put("cwd", *std::move(text));
      }
    }
  }

  // ---- what a program can reach

  void sandbox(const Spot& spot) {
    if (spot->is_string()) {
      if (check_.word(spot, {"none"})) put("sandbox", "none");
      return;
    }
    if (!check_.mapping(spot, {"read", "write", "network", "memory", "processes", "file_size",
                               "open_files", "cpu"})) {
      return;
    }
    std::vector<Member> members;
    for (const std::string_view key : {"read", "write"}) {
      const auto list = spot.find(key);
      if (!list || !check_.list(*list) || !short_enough(*list)) continue;
      std::vector<Value> paths;
      for (std::size_t i = 0; i < (*list)->items.size(); ++i) {
        const Spot item = list->item(i);
        auto text = text_.literal(item);
        if (!text) continue;
        if (text->empty() || text->find('\0') != text->npos) check_.fault(item, "must be a path");
        paths.emplace_back(*std::move(text));
      }
      members.emplace_back(key, Value::array(std::move(paths)));
    }
    if (const auto network = spot.find("network")) {
      if (const auto word = check_.word(*network, {"host", "none"}); word && *word == 1) {
        members.emplace_back("network", "none");
      }
    }
    for (const std::string_view key : {"memory", "file_size"}) {
      const auto most = spot.find(key);
      if (!most) continue;
      if (const auto bytes = check_.size(*most, kSandboxBytesMax))
        members.emplace_back(key, *bytes);
    }
    for (const std::string_view key : {"processes", "open_files"}) {
      const auto most = spot.find(key);
      if (!most) continue;
      if (const auto count = check_.count(*most, kSandboxCountMax))
        members.emplace_back(key, std::uint64_t{*count});
    }
    if (const auto cpu = spot.find("cpu")) {
      if (const auto span = check_.duration(*cpu, std::chrono::seconds(1))) {
        members.emplace_back("cpu", to_text(*span));
      }
    }
    put("sandbox", Value::object(std::move(members)));
  }

  void argv(const Spot& spot) {
    if (spot->items.empty()) {
      check_.fault(spot, "a command needs a program, such as [\"date\", \"-u\"]");
      return;
    }
    std::vector<Value> words;
    bool takes_options = true;
    for (std::size_t i = 0; i < spot->items.size(); ++i) {
      const Spot item = spot.item(i);
      auto text = text_.resolved(item, Secrets::refused);
      if (!text) continue;
      if (i == 0 && (text->empty() || has_expression(*text))) {
        check_.fault(item, "the program must be literal and not empty");
      }
      if (text->find('\0') != text->npos)
        check_.fault(item, "a command argument cannot contain NUL");
      // The words behind `-c` are read by the shell's script, and those behind `--` are no options.
      takes_options = takes_options && *text != "--" && *text != "-c";
      if (i > 0 && takes_options && text->starts_with("${")) {
        check_.note(
            item.path,
            "a value that starts with - can be read as an option; put \"--\" before it if the "
            "program supports that");
      }
      words.emplace_back(*std::move(text));
    }
    put("command", Value::array(std::move(words)));
  }

  void environment(const Spot& spot) {
    if (!check_.any_mapping(spot) || !short_enough(spot)) return;
    std::vector<Member> members;
    for (std::size_t i = 0; i < spot->items.size(); ++i) {
      const Located::Key& key = spot->keys[i];
      const Spot value{&spot->items[i], spot.path_of(key.text)};
      env_key(key.text, key.at, value.path);
      if (auto text = text_.resolved(value, Secrets::replaced)) {
        if (text->find('\0') != text->npos)
          check_.fault(value, "an environment variable cannot contain NUL");
        members.emplace_back(key.text, *std::move(text));
      }
    }
    put("env", as_object(std::move(members)));
  }

  void env_allow(const Spot& spot) {
    if (!check_.list(spot) || !short_enough(spot)) return;
    std::vector<Value> names;
    for (std::size_t i = 0; i < spot->items.size(); ++i) {
      const Spot item = spot.item(i);
      if (auto text = check_.text(item)) {
        env_key(*text, item.at(), item.path);
        names.emplace_back(*std::move(text));
      }
    }
    put("env_allow", Value::array(std::move(names)));
  }

  void env_key(std::string_view name, Place at, const std::string& path) {
    if (!is_env_name(name)) {
      check_.fault_at(at, path, shown(name) + " is not a valid environment variable name");
    } else if (name.starts_with("AETHERIS_")) {
      check_.fault_at(at, path, "AETHERIS_… variables are set by the runtime; remove it");
    }
  }

  void native(const Spot& spot) {
    const auto name = check_.text(spot);
    if (!name) return;
    const auto& known = check_.source().native;
    if (known && !known(*name) && checked_.tool.policy.makes_call()) {
      check_.fault(spot, "unknown native function " + shown(*name));
    }
    put("function", *name);
  }

  bool short_enough(const Spot& spot) {
    if (spot->items.size() <= kWordsMax) return true;
    check_.fault(spot, "at most 1,000 entries");
    return false;
  }

  // ---- the policy as the log keeps it

  void finish() {
    engine::ToolPolicy& policy = checked_.tool.policy;
    checked_.tool.definition = Value::object(std::move(definition_));
    constexpr std::string_view kInDoubt[] = {"resend", "park", "fail", "probe"};
    std::vector<Member> members = {
        {"effect", engine::to_text(policy.effect)},
        {"on_in_doubt", kInDoubt[static_cast<std::size_t>(policy.on_in_doubt)]},
        {"timeout", to_text(policy.timeout)},
        {"grace", to_text(policy.grace)},
        {"dedupe_window", policy.dedupe_window ? to_text(*policy.dedupe_window) : "unlimited"},
        {"retry", retry_value(version_retry_)}};
    if (const auto schema = spot_.find("args_schema")) {
      checked_.tool.args_schema = (*schema)->value();
      members.emplace_back("args_schema", checked_.tool.args_schema);
    }
    if (const auto schema = spot_.find("result_schema")) {
      members.emplace_back("result_schema", (*schema)->value());
    }
    if (!policy.makes_call()) {
      checked_.tool.args_schema = engine::args_schema_of(policy.records);
      members.emplace_back("args_schema", checked_.tool.args_schema);
      members.emplace_back("records", engine::to_text(policy.records));
    }
    for (Member& member : approval_) members.push_back(std::move(member));
    if (policy.local) members.emplace_back("local", true);
    if (!capabilities_.empty()) members.emplace_back("capabilities", Value::array(capabilities_));
    if (!probe_.empty()) members.emplace_back("probe", Value::object(probe_));
    if (!compensate_.empty()) members.emplace_back("compensate", Value::object(compensate_));
    for (Member& member : changes_.policy) members.push_back(std::move(member));
    checked_.tool.verify = changes_.verify;
    const Value without_version = Value::object(std::move(members));
    Value whole = Value::object({{"kind", checked_.tool.kind},
                                 {"definition", checked_.tool.definition},
                                 {"policy", without_version}});
    if (!changes_.verify.is_null()) whole = whole.with("verify", changes_.verify);
    policy.version = to_hex(sha256(canonical(whole))).substr(0, 16);
    checked_.policy =
        without_version.with("version", policy.version).with("retry", retry_value(policy.retry));
    if (const auto& usable = check_.source().usable) {
      if (auto can = usable(checked_.tool); !can) unusable(can.error());
    }
  }

  // Placed at the key, or the word of a list, that the message begins with.
  void unusable(const Error& error) {
    std::string_view message = error.message;
    Spot at = spot_;
    if (const std::size_t colon = message.find(": "); colon != message.npos) {
      const std::string_view where = message.substr(0, colon);
      const std::size_t name_end = std::min(where.find_first_of(".["), where.size());
      if (const auto key = spot_.find(where.substr(0, name_end))) {
        at = *key;
        message.remove_prefix(colon + 2);
        std::size_t index = at->items.size();
        const std::string_view rest = where.substr(name_end);
        if (rest.starts_with('[') && at->is_list()) {
          std::from_chars(rest.data() + 1, rest.data() + rest.size(), index);
        }
        if (index < at->items.size()) at = at.item(index);
      }
    }
    check_.fault(at, std::string(message), {}, error.code);
  }

  Check& check_;
  ToolText text_;
  const Spot& spot_;
  const ServerTool* of_;
  CheckedTool checked_;
  std::vector<Member> definition_, approval_, probe_, compensate_;
  std::vector<Value> capabilities_;
  CheckedChanges changes_;
  std::vector<int> definite_;
  bool effect_known_ = true;
  engine::RetryPolicy version_retry_;  // as the version covers it
};

}  // namespace

CheckedTool check_tool(Check& check, std::string_view name, const Spot& spot,
                       const ServerTool* of) {
  return ToolCheck(check, name, spot, of).run();
}

Value check_connection(Check& check, const Spot& spot) {
  return ToolCheck(check, {}, spot).connection();
}

void check_side_calls(Check& check, CheckedTools& tools) {
  const auto look_up = [&](CheckedTool& tool, const Spot& named, bool probe) {
    const std::string& name = named->scalar.as_string();
    const auto found = tools.find(name);
    if (found == tools.end() && check.clouded(name)) {
      tool.good = false;
      return;
    }
    if (found == tools.end()) {
      check.fault(named, check.no_tool(name), check.nearest(name, tools, [](const auto& one) {
        return std::string_view(one.first);
      }));
      tool.good = false;
      return;
    }
    if (!found->second.good) return;  // its effect may not be known
    const bool reads = found->second.tool.policy.effect == EffectClass::read;
    const bool asks = found->second.policy.find("approval") != nullptr;
    if (probe && !found->second.tool.policy.makes_call()) {
      check.fault(named, shown(name) + " makes no call and cannot be a probe");
      tool.good = false;
      return;
    }
    if (probe == reads && !asks) return;
    if (asks) {
      check.fault(named, "a probe or compensation cannot need approval; set `approval: never` on " +
                             shown(name));
    } else {
      check.fault(named, probe ? "a probe must be `effect: read`; set it on " + shown(name)
                               : shown(name) + " is `effect: read` and cannot compensate");
    }
    tool.good = false;
  };
  for (auto& [name, tool] : tools) {
    if (tool.probe) look_up(tool, *tool.probe, true);
    if (tool.compensate) look_up(tool, *tool.compensate, false);
  }
}

}  // namespace ae::agents
