// ToolCheck: the tools of an agents file: the policy that the engine enforces. How they are called:
// transport_check.h.
#include <fmt/core.h>

#include <algorithm>
#include <charconv>

#include "agents/change_check.h"
#include "agents/checks.h"
#include "agents/child_check.h"
#include "agents/condition_check.h"
#include "agents/transport_check.h"
#include "base/ascii.h"
#include "base/hash.h"
#include "base/http_status.h"
#include "engine/values/recorded_value.h"
#include "json/json.h"
#include "log/field_names.h"
#include "log/outcome.h"

namespace ae::agents {
namespace {

using engine::EffectClass;
using engine::OnInDoubt;

constexpr std::string_view kInDoubt[] = {"resend", "park", "fail", "probe"};  // of OnInDoubt

class ToolCheck {
 public:
  ToolCheck(CheckContext& check, std::string_view name, const SourceNode& source_node,
            const ServerTool* server_tool = nullptr)
      : check_(check), source_node_(source_node), server_tool_(server_tool) {
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
      is_child_ = server_tool_ == nullptr && source_node_->find(field::agent) != nullptr;
      if (is_child_) child_ = check_child(check_, source_node_);
      policy();
      transport_ = check_transport(check_, source_node_, checked_.tool.policy, server_tool_);
      checked_.tool.kind = transport_.kind;
      checked_.tool.policy.local = transport_.local;
      checked_.tool.policy.function = transport_.kind == "worker";
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

 private:
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
        check_.report(*other,
                      fmt::format("`{}` does not apply: `{}` makes no call; remove it", key, name));
      }
    }
    if (const auto effect = source_node_.find("effect");
        effect && !((*effect)->is_string() && (*effect)->scalar.as_string() == "read")) {
      check_.report(*effect, fmt::format("`{}` makes no call and is always `effect: read`", name));
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
    if (is_child_) {
      policy.effect = EffectClass::idempotent;
      policy.dedupe_window = std::nullopt;
      policy.child = engine::ChildPolicy{.agent = std::string(child_.agent.text("name"))};
    }
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
    if (const auto expires = server_tool_ ? source_node_.find("question_expires") : std::nullopt) {
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
    const bool is_function = checked_.tool.kind == "native" || checked_.tool.policy.function;
    if (is_function && !is_digit(entry[0])) {
      // A code of its own; whether it is definite is known at run time only.
      return entry != to_text(OutcomeKind::timeout) && entry != to_text(OutcomeKind::unknown) &&
             entry != "killed" && !(checked_.tool.policy.function && entry == "worker_lost");
    }
    const std::string_view status = entry.starts_with("http_") ? entry.substr(5) : entry;
    if (status.size() != 3 || !std::ranges::all_of(status, is_digit)) return false;
    const int number = std::stoi(std::string(status));
    if (std::ranges::find(transport_.definite, number) != transport_.definite.end()) return true;
    return !is_function && is_no_effect_status(number);
  }

  // ---- the recorded policy

  void finish() {
    engine::ToolPolicy& policy = checked_.tool.policy;
    checked_.tool.definition = Value::object(std::move(transport_.definition));
    std::vector<Member> members = {
        {"effect", engine::to_text(policy.effect)},
        {"on_in_doubt", kInDoubt[static_cast<std::size_t>(policy.on_in_doubt)]},
        {"timeout", to_text(policy.timeout)},
        {"grace", to_text(policy.grace)},
        {"dedupe_window", policy.dedupe_window ? to_text(*policy.dedupe_window) : "unlimited"},
        {"retry", retry_value(version_retry_)}};
    if (const auto schema = source_node_.find("args_schema")) {
      checked_.tool.args_schema = (*schema)->value();
    } else if (child_.args_schema) {
      checked_.tool.args_schema = *child_.args_schema;
    }
    if (!checked_.tool.args_schema.is_null()) {
      members.emplace_back("args_schema", checked_.tool.args_schema);
    }
    if (const auto schema = source_node_.find("result_schema")) {
      members.emplace_back("result_schema", (*schema)->value());
    } else if (child_.result_schema) {
      members.emplace_back("result_schema", *child_.result_schema);
    }
    if (is_child_) members.emplace_back("child", child_.agent);
    if (!policy.makes_call()) {
      checked_.tool.args_schema = engine::args_schema_of(policy.records);
      members.emplace_back("args_schema", checked_.tool.args_schema);
      members.emplace_back("records", engine::to_text(policy.records));
    }
    for (Member& member : approval_) members.push_back(std::move(member));
    if (policy.local) members.emplace_back("local", true);
    if (policy.function) members.emplace_back("function", true);
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
  const SourceNode& source_node_;
  const ServerTool* server_tool_;
  CheckedTool checked_;
  CheckedTransport transport_;
  std::vector<Member> approval_, probe_, compensate_;
  std::vector<Value> capabilities_;
  CheckedChanges changes_;
  CheckedChild child_;
  bool is_child_ = false;
  bool effect_known_ = true;
  engine::RetryPolicy version_retry_;  // the part that the version covers
};

}  // namespace

CheckedTool check_tool(CheckContext& check, std::string_view name, const SourceNode& source_node,
                       const ServerTool* server_tool) {
  return ToolCheck(check, name, source_node, server_tool).run();
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
      check.report(named, fmt::format("{} makes no call and cannot be a probe", quote(name)));
      tool.is_valid = false;
      return;
    }
    if (found->second.tool.policy.child) {
      check.report(
          named,
          fmt::format("{} creates a child job and cannot be a probe or compensation", quote(name)));
      tool.is_valid = false;
      return;
    }
    if (probe == reads && !needs_approval) return;
    if (needs_approval) {
      check.report(
          named,
          fmt::format("a probe or compensation cannot need approval; set `approval: never` on {}",
                      quote(name)));
    } else {
      check.report(named,
                   probe ? fmt::format("a probe must be `effect: read`; set it on {}", quote(name))
                         : fmt::format("{} is `effect: read` and cannot compensate", quote(name)));
    }
    tool.is_valid = false;
  };
  for (auto& [name, tool] : tools) {
    if (tool.probe) lookup_node(tool, *tool.probe, true);
    if (tool.compensate) lookup_node(tool, *tool.compensate, false);
  }
}

}  // namespace ae::agents
