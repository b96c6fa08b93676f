// ToolCheck: tools of an agents file: one transport each, and the policy that the engine enforces.
#include <algorithm>
#include <charconv>

#include "agents/change_check.h"
#include "agents/checks.h"
#include "agents/condition_check.h"
#include "agents/tool_text.h"
#include "base/ascii.h"
#include "base/hash.h"
#include "base/http_status.h"
#include "engine/heart/recorded_value.h"
#include "json/json.h"
#include "log/field_names.h"
#include "log/outcome.h"

namespace ae::agents {
namespace {

using engine::EffectClass;
using engine::OnInDoubt;

constexpr std::uint64_t kOutputMax = 16u << 20;
constexpr std::uint64_t kServerOutputMax = 4u << 20;  // the limit of an MCP message
constexpr std::size_t kListEntriesMax =
    1'000;  // entries of command, env, retry_on, definite_failures
constexpr std::uint64_t kSandboxBytesMax = std::uint64_t{1} << 40;
constexpr std::uint32_t kSandboxCountMax = 1'000'000;
constexpr std::string_view kInDoubt[] = {"resend", "park", "fail", "probe"};  // of OnInDoubt
constexpr Duration kHeartbeatMin = std::chrono::milliseconds(100);

std::string lower(std::string_view text) {
  std::string out(text);
  for (char& c : out) c = static_cast<char>(c >= 'A' && c <= 'Z' ? c | 0x20 : c);
  return out;
}

class ToolCheck {
 public:
  ToolCheck(CheckContext& check, std::string_view name, const SourceNode& source_node,
            const ServerTool* server_tool = nullptr)
      : check_(check), text_(check), source_node_(source_node), server_tool_(server_tool) {
    checked_.tool.name = name;
    checked_.tool.policy.name = name;
  }

  CheckedTool run() {
    const std::size_t before = check_.count();
    if (server_tool_ || check_.mapping(source_node_, Mapping::own_tool)) {
      if (const auto description = source_node_.find("description")) {
        checked_.description = check_.text(*description).value_or("");
      }
      check_recorded();
      policy();
      transport();
      retry();
      side_calls();
      const bool reads = effect_known_ && checked_.tool.policy.effect == EffectClass::read;
      changes_ = check_changes(check_, source_node_, reads);
    }
    if (check_.count() == before) check_approval_arguments();
    checked_.is_valid = check_.count() == before;
    if (checked_.is_valid) finish();
    return std::move(checked_);
  }

  // The connection to an MCP server; `source_node_` is the value of `mcp`.
  Value connection() {
    const bool program = source_node_->find("command") != nullptr;
    if (!check_.mapping(source_node_, program ? Mapping::mcp_program : Mapping::mcp_address)) {
      return {};
    }
    if (program) {
      command(*source_node_.find("command"));
    } else if (const auto target = check_.required(
                   source_node_, "url",
                   "set `command` (to start a server) or `url` (to connect to one)")) {
      if (auto text = text_.resolved(*target, Secrets::refused)) {
        text_.url(*target, *text);
        put("url", *std::move(text));
      }
      std::vector<Member> members;
      if (const auto list = source_node_.find("headers")) headers(*list, members);
      for (Member& member : members) put(member.first, std::move(member.second));
    }
    Value whole = Value::object(std::move(definition_));
    if (whole["headers"].is_object()) {
      for (const auto& [name, text] : whole["headers"].members()) {
        if (!is_protocol_header(lower(name))) continue;
        check_.report(source_node_,
                      "the header " + quote(name) + " is set by the protocol; remove it");
      }
    }
    if (contains_expression(whole)) {
      check_.report(source_node_,
                    "server settings can read env. only, not the arguments of a call");
    }
    return whole;
  }

 private:
  static bool is_protocol_header(std::string_view name) {
    return name.starts_with("mcp-") || name == "accept" || name == "content-type" ||
           name == "last-event-id";
  }

  static bool contains_expression(const Value& value) {
    if (value.is_string()) return has_expression(value.as_string());
    if (value.is_array()) return std::ranges::any_of(value.items(), contains_expression);
    return value.is_object() && std::ranges::any_of(value.members(), [](const Member& member) {
             return contains_expression(member.second);
           });
  }

  // ---- time, random values and ids

  // Functions whose value is recorded without a call: settings of calls do not apply to them.
  void check_recorded() {
    using engine::RecordedKind;
    const auto source_node = server_tool_ ? std::nullopt : source_node_.find("native");
    if (!source_node || !(*source_node)->is_string()) return;
    const std::string& name = (*source_node)->scalar.as_string();
    if (!contains(words_of(Words::recorded_function), name)) return;
    checked_.tool.policy.records = name == "now"      ? RecordedKind::time
                                   : name == "random" ? RecordedKind::random
                                                      : RecordedKind::uuid;
    for (const std::string_view key : shape_of(Mapping::recorded_tool).refused) {
      if (const auto other = source_node_.find(key)) {
        check_.report(*other, "`" + std::string(key) + "` does not apply: `" + name +
                                  "` makes no call; remove it");
      }
    }
    if (const auto effect = source_node_.find("effect");
        effect && !((*effect)->is_string() && (*effect)->scalar.as_string() == "read")) {
      check_.report(*effect, "`" + name + "` makes no call and is always `effect: read`");
    }
  }

  // ---- policy

  void policy() {
    engine::ToolPolicy& policy = checked_.tool.policy;
    if (const auto effect = source_node_.find("effect")) {
      if (const auto word = check_.word(*effect, Words::effect)) {
        for (const EffectClass known :
             {EffectClass::read, EffectClass::idempotent, EffectClass::at_most_once}) {
          if (engine::to_text(known) == *word) policy.effect = known;
        }
      } else {
        effect_known_ = false;
      }
    }
    if (!policy.makes_call()) policy.effect = EffectClass::read;
    policy.on_in_doubt =
        policy.effect == EffectClass::at_most_once ? OnInDoubt::park : OnInDoubt::resend;
    if (const auto in_doubt = source_node_.find("on_in_doubt")) {
      if (const auto word = check_.word(*in_doubt, Words::on_in_doubt)) {
        policy.on_in_doubt =
            static_cast<OnInDoubt>(std::ranges::find(kInDoubt, *word) - std::begin(kInDoubt));
        if (effect_known_ && policy.effect == EffectClass::at_most_once &&
            policy.on_in_doubt == OnInDoubt::resend) {
          check_.report(
              *in_doubt,
              "an at_most_once call is never resent: use park or fail, or set effect: idempotent "
              "if the service deduplicates by key");
        }
      }
    }
    if (const auto timeout = source_node_.find("timeout")) {
      policy.timeout = check_.duration(*timeout, kDurationMin).value_or(policy.timeout);
    }
    if (const auto grace = source_node_.find("grace")) {
      policy.grace = check_.duration(*grace, Duration(0)).value_or(policy.grace);
    }
    if (const auto window = source_node_.find("dedupe_window")) {
      if ((*window)->is_string() &&
          contains(words_of(Words::dedupe_window), (*window)->scalar.as_string())) {
        policy.dedupe_window = std::nullopt;
      } else {
        policy.dedupe_window = check_.duration(*window, kDurationMin);
      }
    }
    if (const auto schema = source_node_.find("args_schema")) {
      policy.args_schema = check_.schema(*schema);
    }
    if (const auto schema = source_node_.find("result_schema")) {
      policy.result_schema = check_.schema(*schema);
    }
    if (!policy.makes_call()) {
      auto schema = Schema::compile(engine::args_schema_of(policy.records));
      AE_CHECK(schema.has_value(), "a schema of this program");
      policy.args_schema = *std::move(schema);
    }
    approval();
    if (const auto expires = server_tool_ ? source_node_.find("ask_expires") : std::nullopt) {
      if (const auto span = check_.duration(*expires, kDurationMin)) {
        approval_.emplace_back("ask_expires", to_text(*span));
      }
    }
    if (const auto can = source_node_.find("capabilities")) {
      const auto names = check_capabilities(check_, *can);
      capabilities_.assign(names.begin(), names.end());
      checked_.tool.policy.capabilities = names;
    }
  }

  // Whether calls need an approval, and for how long it can be given.
  void approval() {
    const auto source_node = source_node_.find("approval");
    bool needs_approval = false;
    if (source_node) {
      const bool text = (*source_node)->is_string();
      if (text && has_expression((*source_node)->scalar.as_string())) {
        needs_approval = condition(*source_node);
      } else if (const auto word = check_.word(*source_node, Words::approval)) {
        needs_approval = *word == "required";
      } else {
        return;
      }
      if (needs_approval) approval_.emplace_back("approval", (*source_node)->scalar);
    }
    const auto expires = source_node_.find("approval_expires");
    if (!expires) return;
    if (!source_node) check_.report(*expires, "`approval_expires` needs `approval`");
    if (const auto span = check_.duration(*expires, kDurationMin); span && needs_approval) {
      approval_.emplace_back("approval_expires", to_text(*span));
    }
  }

  bool condition(const SourceNode& source_node) {
    const std::size_t before = check_.count();
    reject_env_and_secrets(check_, source_node);
    if (check_.count() != before) return false;
    check_.templates(source_node, [this](const SourceNode& string, const Template& compiled) {
      const ExprRoots& read = compiled.roots();
      for (const std::string& root : read.roots) {
        if (root == "args") continue;
        check_.report_root(string, "." + root, "`approval` can read .args only");
      }
    });
    if (check_.count() != before) return false;
    if (is_one_expression(*source_node.value)) return true;
    check_.report(source_node, "`approval` must be never, required or a single ${ … } over .args");
    return false;
  }

  // Checks that the tool has the arguments its own condition reads. For MCP
  // tools, mcp_check.cc does this.
  void check_approval_arguments() {
    const auto condition = source_node_.find("approval");
    const auto schema = source_node_.find("args_schema");
    const bool records = !checked_.tool.policy.makes_call();
    if (server_tool_ != nullptr || !condition || (!schema && !records)) return;
    const Value taken =
        records ? engine::args_schema_of(checked_.tool.policy.records) : (*schema)->value();
    check_condition(check_, *condition, {{.name = checked_.tool.name, .args_schema = &taken}},
                    nullptr);
  }

  // ---- probe and compensate

  void side_calls() {
    const OnInDoubt in_doubt = checked_.tool.policy.on_in_doubt;
    const bool reads = effect_known_ && checked_.tool.policy.effect == EffectClass::read;
    if (const auto probe = source_node_.find("probe")) {
      if (in_doubt != OnInDoubt::probe) {
        check_.report(*probe, "`probe` needs `on_in_doubt: probe`");
      } else if (reads) {
        check_.report(*probe, "`probe` is not allowed with `effect: read`");
      }
      checked_.probe = side_call(*probe, Mapping::probe, {"args", "call"}, probe_);
      if (const auto happened =
              check_.required(*probe, "happened",
                              "a single ${ … } over .result; null means the call did not happen")) {
        if (reads_only(check_, *happened, {"args", "call", field::result}) &&
            !is_one_expression(*happened->value)) {
          check_.report(*happened,
                        "`happened` must be a single ${ … }; null means the call did not happen");
        }
        probe_.emplace_back("happened", (*happened)->value());
      }
    } else if (in_doubt == OnInDoubt::probe) {
      check_.report(*source_node_.find("on_in_doubt"),
                    "on_in_doubt: probe needs `probe: { tool, args, happened }`");
    }
    if (const auto undo = source_node_.find(field::compensate)) {
      if (reads) check_.report(*undo, "`compensate` is not allowed with `effect: read`");
      checked_.compensate =
          side_call(*undo, Mapping::compensate, {"args", "call", field::result}, compensate_);
    }
  }

  // Returns the node that names the tool.
  std::optional<SourceNode> side_call(const SourceNode& source_node, Mapping mapping,
                                      NameList roots, std::vector<Member>& members) {
    if (!check_.mapping(source_node, mapping)) return std::nullopt;
    const auto named = check_.required(source_node, "tool", "the name of a tool of this file");
    const auto name = named ? check_.text(*named) : std::nullopt;
    if (name) members.emplace_back("tool", *name);
    if (const auto args = source_node.find("args")) {
      if (reads_only(check_, *args, roots) && !(*args)->is_mapping() &&
          !is_one_expression(*args->value)) {
        check_.report(*args,
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
    const auto source_node = source_node_.find("retry");
    const bool reads = effect_known_ && policy.effect == EffectClass::read && policy.makes_call();
    if (!source_node) {
      if (reads) policy.retry = default_read_retry();
      return;
    }
    const bool once = effect_known_ && policy.effect == EffectClass::at_most_once;
    check_retry(check_, *source_node, version_retry_,
                [&](std::string_view entry) { return !once || is_definite(entry); });
    policy.retry = reads ? read_retry(*source_node, version_retry_) : version_retry_;
  }

  // SPEC §6: failures that exclude any effect.
  bool is_definite(std::string_view entry) const {
    for (const std::string_view word :
         {"connect", "tls", "not_sent", "spawn_failed", "request_invalid", "secret_missing"}) {
      if (entry == word) return true;
    }
    if (checked_.tool.kind == "command") return entry.starts_with("exit_");
    if (server_tool_ &&
        (entry == "tool_error" || entry == "rpc_refused" || entry == "input_required"))
      return true;
    if (checked_.tool.kind ==
        "native") {  // its own codes; whether one is definite is known at run time only
      return entry != to_text(OutcomeKind::timeout) && entry != to_text(OutcomeKind::unknown) &&
             entry != "killed" && !is_digit(entry[0]);
    }
    const std::string_view status = entry.starts_with("http_") ? entry.substr(5) : entry;
    if (status.size() != 3 || !std::ranges::all_of(status, is_digit)) return false;
    const int number = std::stoi(std::string(status));
    if (std::ranges::find(definite_, number) != definite_.end()) return true;
    return is_no_effect_status(number);
  }

  // ---- transports

  void transport() {
    if (server_tool_) return check_server_tool();
    std::vector<std::string_view> kinds;
    const Shape& shape = shape_of(Mapping::own_tool);
    for (const std::string_view kind : shape.kinds) {
      if (source_node_->find(kind) != nullptr) kinds.push_back(kind);
    }
    if (kinds.empty()) {
      check_.report(source_node_, "a tool needs one of http, command, native or mcp");
      return;
    }
    if (kinds.size() > 1) {
      check_.report(source_node_,
                    "a tool can have only one of http, command, native and mcp; this one has " +
                        std::string(kinds[0]) + " and " + std::string(kinds[1]));
    }
    checked_.tool.kind = kinds[0];
    check_.misplaced(source_node_, shape, kinds[0], [](std::string_view key, const auto& owners) {
      if (key == "heartbeat_timeout" || key == "local") return std::string();  // reported below
      const std::string text = "`" + std::string(key) + "` is ";
      return owners.size() > 1 ? text + "not for native tools"
                               : text + "for " + std::string(owners[0]) + " tools only";
    });
    if (const auto failures = source_node_.find("definite_failures");
        failures && kinds[0] == "http") {
      definite_failures(*failures);
    }
    if (const auto http_spot = source_node_.find("http")) http(*http_spot);
    if (const auto command_spot = source_node_.find("command")) command(*command_spot);
    if (const auto native_spot = source_node_.find("native")) native(*native_spot);
    check_output_shape();
    heartbeat();
    local();
  }

  // A program that sends nothing off the machine: once its process group has ended,
  // it has no further effects.
  void local() {
    const auto source_node = source_node_.find("local");
    if (!source_node) return;
    if (checked_.tool.kind != "command") {
      return check_.report(
          *source_node,
          "`local` is for command tools only: other calls can take effect after the "
          "process has ended");
    }
    checked_.tool.policy.local = check_.boolean(*source_node).value_or(false);
  }

  void check_server_tool() {
    checked_.tool.kind = "mcp";
    put("server", server_tool_->server);
    put("connection", server_tool_->connection);
    put("tool", server_tool_->pinned["name"]);
    put("digest", server_tool_->pinned["digest"]);
    if (const auto most = source_node_.find("output_max")) {
      if (const auto bytes = check_.size(*most, kServerOutputMax)) put("output_max", *bytes);
    }
  }

  // The longest time without a progress report. Part of the transport: not in the plan.
  void heartbeat() {
    const auto source_node = source_node_.find("heartbeat_timeout");
    if (!source_node) return;
    if (checked_.tool.kind == "http") {
      return check_.report(
          *source_node,
          "`heartbeat_timeout` is for command and native tools; for http tools use "
          "`timeout`");
    }
    const auto heartbeat = check_.duration(*source_node, kHeartbeatMin);
    if (!heartbeat) return;
    const Duration timeout = checked_.tool.policy.timeout;
    if (*heartbeat >= timeout) {
      return check_.report(*source_node,
                           "must be shorter than `timeout` (" + to_text(timeout) + ")");
    }
    put("heartbeat_timeout", to_text(*heartbeat));
  }

  void put(std::string_view key, Value value) { definition_.emplace_back(key, std::move(value)); }

  void check_output_shape() {
    if (const auto result = source_node_.find(field::result)) {
      if (const auto word = check_.word(*result, Words::result); word == "full") {
        put(field::result, "full");
      }
    }
    bool json = checked_.tool.kind == "http";
    if (const auto output = source_node_.find("output")) {
      if (const auto word = check_.word(*output, Words::output); word == "json") {
        put("output", "json");
        json = true;
      }
    }
    if (const auto numbers = source_node_.find("numbers");
        numbers && checked_.tool.kind != "native") {
      if (const auto word = check_.word(*numbers, Words::numbers)) put("numbers", *word);
      if (!json) check_.report(*numbers, "`numbers` needs `output: json`");
    }
    if (const auto most = source_node_.find("output_max"); most && checked_.tool.kind != "native") {
      if (const auto bytes = check_.size(*most, kOutputMax)) put("output_max", *bytes);
    }
  }

  void definite_failures(const SourceNode& source_node) {
    if (!check_.list(source_node) || !is_within_limit(source_node)) return;
    std::vector<Value> statuses;
    for (std::size_t i = 0; i < source_node->items.size(); ++i) {
      const SourceNode item = source_node.item(i);
      const Value& number = item->scalar;
      if (!number.is_integer() || number.as_int() < 300 || number.as_int() > 599) {
        check_.report(item, "must be an HTTP status from 300 to 599");
        continue;
      }
      definite_.push_back(static_cast<int>(number.as_int()));
      statuses.push_back(number);
    }
    put("definite_failures", Value::array(std::move(statuses)));
  }

  void http(const SourceNode& source_node) {
    if (!check_.mapping(source_node, Mapping::http)) return;
    std::vector<Member> members;
    const Names methods = words_of(Words::http_method);
    if (const auto method =
            check_.required(source_node, "method", "one of " + join_names(methods))) {
      if (const auto word = check_.word(*method, methods)) {
        members.emplace_back("method", *word);
      }
    }
    if (const auto body = source_node.find("body")) this->body(*body, members);
    if (const auto target = check_.required(source_node, "url", "http://… or https://…")) {
      if (auto text = text_.resolved(*target, Secrets::refused)) {
        text_.url(*target, *text);
        members.emplace_back("url", *std::move(text));
      }
    }
    if (const auto list = source_node.find("headers")) headers(*list, members);
    for (Member& member : members) put(member.first, std::move(member.second));
  }

  void body(const SourceNode& source_node, std::vector<Member>& members) {
    const std::string method = members.empty() ? "" : members[0].second.as_string();
    if (method == "GET" || method == "HEAD") {
      check_.report(source_node, method + " requests cannot have a body");
    }
    if (auto value = text_.resolved_value(source_node))
      members.emplace_back("body", *std::move(value));
  }

  void headers(const SourceNode& source_node, std::vector<Member>& members) {
    if (!check_.any_mapping(source_node)) return;
    if (source_node->items.size() > kHeadersMax) {
      check_.report(source_node, "at most 64 headers");
      return;
    }
    std::vector<Member> headers;
    std::vector<std::string> names;
    for (std::size_t i = 0; i < source_node->items.size(); ++i) {
      const SourceTree::Key& key = source_node->keys[i];
      const SourceNode value{&source_node->items[i], source_node.path_of(key.text)};
      const std::string name = lower(key.text);
      if (!is_header_name(key.text)) {
        check_.report_at(key.at, value.path, quote(key.text) + " is not a valid header name");
      } else if (is_reserved_header(name)) {
        check_.report_at(key.at, value.path,
                         "the header " + quote(key.text) + " is set by the runtime; remove it");
      } else if (std::ranges::find(names, name) != names.end()) {
        check_.report_at(key.at, value.path, "duplicate header " + quote(key.text));
      }
      names.push_back(name);
      auto text = text_.resolved(value, Secrets::replaced);
      if (!text) continue;
      if (text->find_first_of(std::string_view("\r\n\0", 3)) != text->npos) {
        check_.report(value, "a header value cannot contain a line break or NUL");
      }
      headers.emplace_back(key.text, *std::move(text));
    }
    members.emplace_back("headers", as_object(std::move(headers)));
  }

  static bool is_reserved_header(std::string_view name) {
    constexpr std::string_view kOurs[] = {"host",       "content-length",  "transfer-encoding",
                                          "connection", "idempotency-key", "te",
                                          "trailer",    "expect",          "keep-alive",
                                          "upgrade",    "accept-encoding", "proxy-authorization"};
    return name.starts_with("x-aetheris-") || std::ranges::find(kOurs, name) != std::end(kOurs);
  }

  // Duplicates are already reported; a Value cannot hold them.
  static Value as_object(std::vector<Member> members) {
    std::ranges::stable_sort(members, {}, &Member::first);
    const auto twins = std::ranges::unique(members, {}, &Member::first);
    members.erase(twins.begin(), twins.end());
    return Value::object(std::move(members));
  }

  void command(const SourceNode& source_node) {
    if (check_.list(source_node) && is_within_limit(source_node)) argv(source_node);
    if (const auto env = source_node_.find("env")) environment(*env);
    if (const auto allow = source_node_.find("env_allow")) env_allow(*allow);
    if (const auto box = source_node_.find("sandbox")) sandbox(*box);
    if (const auto cwd = source_node_.find("cwd")) {
      if (auto text = text_.literal(*cwd)) {
        if (text->empty()) check_.report(*cwd, "must be a folder path");
        put("cwd", *std::move(text));
      }
    }
  }

  // ---- sandbox

  void sandbox(const SourceNode& source_node) {
    if (source_node->is_string()) {
      if (const auto word = check_.word(source_node, Words::sandbox)) put("sandbox", *word);
      return;
    }
    if (!check_.mapping(source_node, Mapping::sandbox_limits)) {
      return;
    }
    std::vector<Member> members;
    for (const std::string_view key : {"read", "write"}) {
      const auto list = source_node.find(key);
      if (!list || !check_.list(*list) || !is_within_limit(*list)) continue;
      std::vector<Value> paths;
      for (std::size_t i = 0; i < (*list)->items.size(); ++i) {
        const SourceNode item = list->item(i);
        auto text = text_.literal(item);
        if (!text) continue;
        if (text->empty() || text->find('\0') != text->npos) check_.report(item, "must be a path");
        paths.emplace_back(*std::move(text));
      }
      members.emplace_back(key, Value::array(std::move(paths)));
    }
    if (const auto network = source_node.find("network")) {
      if (const auto word = check_.word(*network, Words::network); word == "none") {
        members.emplace_back("network", *word);
      }
    }
    for (const std::string_view key : {"memory", "file_size"}) {
      const auto most = source_node.find(key);
      if (!most) continue;
      if (const auto bytes = check_.size(*most, kSandboxBytesMax))
        members.emplace_back(key, *bytes);
    }
    for (const std::string_view key : {"processes", "open_files"}) {
      const auto most = source_node.find(key);
      if (!most) continue;
      if (const auto count = check_.count(*most, kSandboxCountMax))
        members.emplace_back(key, std::uint64_t{*count});
    }
    if (const auto cpu = source_node.find("cpu")) {
      if (const auto span = check_.duration(*cpu, std::chrono::seconds(1))) {
        members.emplace_back("cpu", to_text(*span));
      }
    }
    put("sandbox", Value::object(std::move(members)));
  }

  void argv(const SourceNode& source_node) {
    if (source_node->items.empty()) {
      check_.report(source_node, "a command needs a program, such as [\"date\", \"-u\"]");
      return;
    }
    std::vector<Value> words;
    bool takes_options = true;
    for (std::size_t i = 0; i < source_node->items.size(); ++i) {
      const SourceNode item = source_node.item(i);
      auto text = text_.resolved(item, Secrets::refused);
      if (!text) continue;
      if (i == 0 && (text->empty() || has_expression(*text))) {
        check_.report(item, "the program must be literal and not empty");
      }
      if (text->find('\0') != text->npos)
        check_.report(item, "a command argument cannot contain NUL");
      // Arguments after `-c` are for the shell's script, those after `--` are not options.
      takes_options = takes_options && *text != "--" && *text != "-c";
      if (i > 0 && takes_options && text->starts_with("${")) {
        check_.add_note(
            item.path,
            "a value that starts with - can be read as an option; put \"--\" before it if the "
            "program supports that");
      }
      words.emplace_back(*std::move(text));
    }
    put("command", Value::array(std::move(words)));
  }

  void environment(const SourceNode& source_node) {
    if (!check_.any_mapping(source_node) || !is_within_limit(source_node)) return;
    std::vector<Member> members;
    for (std::size_t i = 0; i < source_node->items.size(); ++i) {
      const SourceTree::Key& key = source_node->keys[i];
      const SourceNode value{&source_node->items[i], source_node.path_of(key.text)};
      env_key(key.text, key.at, value.path);
      if (auto text = text_.resolved(value, Secrets::replaced)) {
        if (text->find('\0') != text->npos)
          check_.report(value, "an environment variable cannot contain NUL");
        members.emplace_back(key.text, *std::move(text));
      }
    }
    put("env", as_object(std::move(members)));
  }

  void env_allow(const SourceNode& source_node) {
    if (!check_.list(source_node) || !is_within_limit(source_node)) return;
    std::vector<Value> names;
    for (std::size_t i = 0; i < source_node->items.size(); ++i) {
      const SourceNode item = source_node.item(i);
      if (auto text = check_.text(item)) {
        env_key(*text, item.at(), item.path);
        names.emplace_back(*std::move(text));
      }
    }
    put("env_allow", Value::array(std::move(names)));
  }

  void env_key(std::string_view name, SourceLocation at, const std::string& path) {
    if (!is_env_name(name)) {
      check_.report_at(at, path, quote(name) + " is not a valid environment variable name");
    } else if (name.starts_with("AETHERIS_")) {
      check_.report_at(at, path, "AETHERIS_… variables are set by the runtime; remove it");
    }
  }

  void native(const SourceNode& source_node) {
    const auto name = check_.text(source_node);
    if (!name) return;
    const auto& known = check_.source().native;
    if (known && !known(*name) && checked_.tool.policy.makes_call()) {
      check_.report(source_node, "unknown native function " + quote(*name));
    }
    put("function", *name);
  }

  bool is_within_limit(const SourceNode& source_node) {
    if (source_node->items.size() <= kListEntriesMax) return true;
    check_.report(source_node, "at most 1,000 entries");
    return false;
  }

  // ---- the recorded policy

  void finish() {
    engine::ToolPolicy& policy = checked_.tool.policy;
    checked_.tool.definition = Value::object(std::move(definition_));
    std::vector<Member> members = {
        {"effect", engine::to_text(policy.effect)},
        {"on_in_doubt", kInDoubt[static_cast<std::size_t>(policy.on_in_doubt)]},
        {"timeout", to_text(policy.timeout)},
        {"grace", to_text(policy.grace)},
        {"dedupe_window", policy.dedupe_window ? to_text(*policy.dedupe_window) : "unlimited"},
        {"retry", retry_value(version_retry_)}};
    if (const auto schema = source_node_.find("args_schema")) {
      checked_.tool.args_schema = (*schema)->value();
      members.emplace_back("args_schema", checked_.tool.args_schema);
    }
    if (const auto schema = source_node_.find("result_schema")) {
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
    if (!compensate_.empty()) members.emplace_back(field::compensate, Value::object(compensate_));
    for (Member& member : changes_.policy) members.push_back(std::move(member));
    checked_.tool.verify = changes_.verify;
    const Value without_version = Value::object(std::move(members));
    Value whole = Value::object({{field::kind, checked_.tool.kind},
                                 {"definition", checked_.tool.definition},
                                 {"policy", without_version}});
    if (!changes_.verify.is_null()) whole = whole.with("verify", changes_.verify);
    policy.version = to_hex(sha256(canonical(whole))).substr(0, 16);
    checked_.policy = without_version.with(field::version, policy.version)
                          .with("retry", retry_value(policy.retry));
    if (const auto& usable = check_.source().usable) {
      if (auto can = usable(checked_.tool); !can) mark_unusable(can.error());
    }
  }

  // Positioned at the key or list item that the message starts with.
  void mark_unusable(const Error& error) {
    std::string_view message = error.message;
    SourceNode at = source_node_;
    if (const std::size_t colon = message.find(": "); colon != message.npos) {
      const std::string_view where = message.substr(0, colon);
      const std::size_t name_end = std::min(where.find_first_of(".["), where.size());
      if (const auto key = source_node_.find(where.substr(0, name_end))) {
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
    check_.report(at, std::string(message), {}, error.code);
  }

  CheckContext& check_;
  ToolText text_;
  const SourceNode& source_node_;
  const ServerTool* server_tool_;
  CheckedTool checked_;
  std::vector<Member> definition_, approval_, probe_, compensate_;
  std::vector<Value> capabilities_;
  CheckedChanges changes_;
  std::vector<int> definite_;
  bool effect_known_ = true;
  engine::RetryPolicy version_retry_;  // the part that the version covers
};

}  // namespace

CheckedTool check_tool(CheckContext& check, std::string_view name, const SourceNode& source_node,
                       const ServerTool* server_tool) {
  return ToolCheck(check, name, source_node, server_tool).run();
}

Value check_connection(CheckContext& check, const SourceNode& source_node) {
  return ToolCheck(check, {}, source_node).connection();
}

void check_side_calls(CheckContext& check, CheckedTools& tools) {
  const auto lookup_node = [&](CheckedTool& tool, const SourceNode& named, bool probe) {
    const std::string& name = named->scalar.as_string();
    const auto found = tools.find(name);
    if (found == tools.end() && check.may_be_unknown(name)) {
      tool.is_valid = false;
      return;
    }
    if (found == tools.end()) {
      check.report(
          named, check.describe_missing_tool(name),
          check.nearest(name, tools, [](const auto& one) { return std::string_view(one.first); }));
      tool.is_valid = false;
      return;
    }
    if (!found->second.is_valid) return;  // its effect may be unknown
    const bool reads = found->second.tool.policy.effect == EffectClass::read;
    const bool needs_approval = found->second.policy.find("approval") != nullptr;
    if (probe && !found->second.tool.policy.makes_call()) {
      check.report(named, quote(name) + " makes no call and cannot be a probe");
      tool.is_valid = false;
      return;
    }
    if (probe == reads && !needs_approval) return;
    if (needs_approval) {
      check.report(
          named,
          "a probe or compensation cannot need approval; set `approval: never` on " + quote(name));
    } else {
      check.report(named, probe ? "a probe must be `effect: read`; set it on " + quote(name)
                                : quote(name) + " is `effect: read` and cannot compensate");
    }
    tool.is_valid = false;
  };
  for (auto& [name, tool] : tools) {
    if (tool.probe) lookup_node(tool, *tool.probe, true);
    if (tool.compensate) lookup_node(tool, *tool.compensate, false);
  }
}

}  // namespace ae::agents
