// check_transport: see transport_check.h. Programs are in command_check.cc.
#include "agents/transport_check.h"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "agents/command_check.h"
#include "agents/tool_text.h"
#include "log/field_names.h"

namespace ae::agents {
namespace {

constexpr std::uint64_t kOutputMax = 16u << 20;
constexpr std::uint64_t kServerOutputMax = 4u << 20;  // the limit of an MCP message
// Entries of command, env, retry_on, definite_failures.
constexpr std::size_t kListEntriesMax = 1'000;
constexpr Duration kHeartbeatMin = std::chrono::milliseconds(100);

std::string lower(std::string_view text) {
  std::string out(text);
  for (char& c : out) c = static_cast<char>(c >= 'A' && c <= 'Z' ? c | 0x20 : c);
  return out;
}

bool is_protocol_header(std::string_view name) {
  return name.starts_with("mcp-") || name == "accept" || name == "content-type" ||
         name == "last-event-id";
}

bool is_reserved_header(std::string_view name) {
  constexpr std::string_view kOurs[] = {"host",       "content-length",  "transfer-encoding",
                                        "connection", "idempotency-key", "te",
                                        "trailer",    "expect",          "keep-alive",
                                        "upgrade",    "accept-encoding", "proxy-authorization"};
  return name.starts_with("x-aetheris-") || std::ranges::find(kOurs, name) != std::end(kOurs);
}

bool contains_expression(const Value& value) {
  if (value.is_string()) return has_expression(value.as_string());
  if (value.is_array()) return std::ranges::any_of(value.items(), contains_expression);
  return value.is_object() && std::ranges::any_of(value.members(), [](const Member& member) {
           return contains_expression(member.second);
         });
}

class TransportCheck {
 public:
  TransportCheck(CheckContext& check, const SourceNode& source_node,
                 const engine::ToolPolicy& policy)
      : check_(check), text_(check), source_node_(source_node), policy_(policy) {}

  CheckedTransport run() {
    transport();
    return std::move(transport_);
  }

  CheckedTransport run(const ServerTool& server_tool) {
    check_server_tool(server_tool);
    return std::move(transport_);
  }

  // The connection to an MCP server; `source_node_` is the value of `mcp`.
  Value connection() {
    const bool program = source_node_->find("command") != nullptr;
    if (!check_.mapping(source_node_, program ? Mapping::mcp_program : Mapping::mcp_address)) {
      return {};
    }
    if (program) {
      check_command(check_, source_node_, *source_node_.find("command"), transport_.definition);
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
    Value whole = Value::object(std::move(transport_.definition));
    if (whole["headers"].is_object()) {
      for (const auto& [name, text] : whole["headers"].members()) {
        if (!is_protocol_header(lower(name))) continue;
        check_.report(source_node_,
                      fmt::format("the header {} is set by the protocol; remove it", quote(name)));
      }
    }
    if (contains_expression(whole)) {
      check_.report(source_node_,
                    "server settings can read env. only, not the arguments of a call");
    }
    return whole;
  }

 private:
  void transport() {
    std::vector<std::string_view> kinds;
    const Shape& shape = shape_of(Mapping::own_tool);
    for (const std::string_view kind : shape.kinds) {
      if (source_node_->find(kind) != nullptr) kinds.push_back(kind);
    }
    if (kinds.empty()) {
      check_.report(source_node_,
                    "a tool needs one of http, command, native, worker, agent or mcp");
      return;
    }
    if (kinds.size() > 1) {
      check_.report(source_node_,
                    fmt::format("a tool can have only one of http, command, native, worker, agent "
                                "and mcp; this one has {} and {}",
                                kinds[0], kinds[1]));
    }
    transport_.kind = kinds[0];
    const std::string_view kind = kinds[0];
    check_.misplaced(source_node_, shape, kind, [&](std::string_view key, const auto& owners) {
      if (key == "heartbeat_timeout" || key == "local" || key == "verify") {
        return std::string();  // reported below
      }
      if (owners.size() > 2) return fmt::format("`{}` is not for {} tools", key, kind);
      return owners.size() == 2
                 ? fmt::format("`{}` is for {} and {} tools only", key, owners[0], owners[1])
                 : fmt::format("`{}` is for {} tools only", key, owners[0]);
    });
    if (const auto failures = source_node_.find("definite_failures");
        failures && (kind == "http" || kind == "worker")) {
      definite_failures(*failures);
    }
    if (const auto http_spot = source_node_.find("http")) http(*http_spot);
    if (const auto command_spot = source_node_.find("command"))
      check_command(check_, source_node_, *command_spot, transport_.definition);
    if (const auto native_spot = source_node_.find("native")) native(*native_spot);
    if (const auto worker_spot = source_node_.find("worker")) worker(*worker_spot);
    if (const auto agent_spot = source_node_.find(field::agent);
        agent_spot && kind == field::agent) {
      put(field::agent, (*agent_spot)->value());
    }
    check_output_shape();
    heartbeat();
    local();
  }

  // A program that sends nothing off the machine: once its process group has ended,
  // it has no further effects.
  void local() {
    const auto source_node = source_node_.find("local");
    if (!source_node) return;
    if (transport_.kind != "command") {
      return check_.report(
          *source_node,
          "`local` is for command tools only: other calls can take effect after the "
          "process has ended");
    }
    transport_.local = check_.boolean(*source_node).value_or(false);
  }

  void check_server_tool(const ServerTool& server_tool) {
    transport_.kind = "mcp";
    put("server", server_tool.server);
    put("connection", server_tool.connection);
    put("tool", server_tool.pinned["name"]);
    put("digest", server_tool.pinned["digest"]);
    if (const auto most = source_node_.find("output_max")) {
      if (const auto bytes = check_.size(*most, kServerOutputMax)) put("output_max", *bytes);
    }
  }

  // The longest time without a progress report. Part of the transport: not in the plan.
  void heartbeat() {
    const auto source_node = source_node_.find("heartbeat_timeout");
    if (!source_node) return;
    if (transport_.kind == "http") {
      return check_.report(
          *source_node,
          "`heartbeat_timeout` is for command, native and worker tools; for http tools use "
          "`timeout`");
    }
    const auto heartbeat = check_.duration(*source_node, kHeartbeatMin);
    if (!heartbeat) return;
    const Duration timeout = policy_.timeout;
    if (*heartbeat >= timeout) {
      return check_.report(*source_node,
                           fmt::format("must be shorter than `timeout` ({})", to_text(timeout)));
    }
    put("heartbeat_timeout", to_text(*heartbeat));
  }

  void check_output_shape() {
    if (const auto result = source_node_.find(field::result)) {
      if (const auto word = check_.word(*result, Words::result); word == "full") {
        put(field::result, "full");
      }
    }
    bool json = transport_.kind == "http";
    if (const auto output = source_node_.find("output")) {
      if (const auto word = check_.word(*output, Words::output); word == "json") {
        put("output", "json");
        json = true;
      }
    }
    const bool is_function = transport_.kind == "native" || transport_.kind == "worker";
    if (const auto numbers = source_node_.find("numbers"); numbers && !is_function) {
      if (const auto word = check_.word(*numbers, Words::numbers)) put("numbers", *word);
      if (!json) check_.report(*numbers, "`numbers` needs `output: json`");
    }
    if (const auto most = source_node_.find("output_max"); most && transport_.kind != "native") {
      if (const auto bytes = check_.size(*most, kOutputMax)) put("output_max", *bytes);
    }
  }

  void definite_failures(const SourceNode& source_node) {
    if (!check_.list(source_node) || !is_within_limit(check_, source_node)) return;
    std::vector<Value> statuses;
    for (std::size_t i = 0; i < source_node->items.size(); ++i) {
      const SourceNode item = source_node.item(i);
      const Value& number = item->scalar;
      if (!number.is_integer() || number.as_int() < 300 || number.as_int() > 599) {
        check_.report(item, "must be an HTTP status from 300 to 599");
        continue;
      }
      transport_.definite.push_back(static_cast<int>(number.as_int()));
      statuses.push_back(number);
    }
    put("definite_failures", Value::array(std::move(statuses)));
  }

  void http(const SourceNode& source_node) {
    if (!check_.mapping(source_node, Mapping::http)) return;
    std::vector<Member> members;
    const Names methods = words_of(Words::http_method);
    if (const auto method =
            check_.required(source_node, "method", fmt::format("one of {}", join_names(methods)))) {
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
      check_.report(source_node, fmt::format("{} requests cannot have a body", method));
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
        check_.report_at(key.at, value.path,
                         fmt::format("{} is not a valid header name", quote(key.text)));
      } else if (is_reserved_header(name)) {
        check_.report_at(
            key.at, value.path,
            fmt::format("the header {} is set by the runtime; remove it", quote(key.text)));
      } else if (std::ranges::find(names, name) != names.end()) {
        check_.report_at(key.at, value.path, fmt::format("duplicate header {}", quote(key.text)));
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

  void native(const SourceNode& source_node) {
    const auto name = check_.text(source_node);
    if (!name) return;
    const auto& known = check_.source().native;
    if (known && !known(*name) && policy_.makes_call()) {
      check_.report(source_node, fmt::format("unknown native function {}", quote(*name)));
    }
    put("function", *name);
  }

  // A function that workers register. This process need not have a worker that offers it.
  void worker(const SourceNode& source_node) {
    const auto name = check_.text(source_node);
    if (name && check_.name("a function", *name, source_node.at(), source_node.path)) {
      put("function", *name);
    }
    if (const auto verify = source_node_.find("verify"); verify && transport_.kind == "worker") {
      check_.report(*verify,
                    "the changes of a worker's function cannot be verified yet; remove `verify`",
                    {}, Code::unsupported);
    }
  }

  void put(std::string_view key, Value value) {
    transport_.definition.emplace_back(key, std::move(value));
  }

  CheckContext& check_;
  ToolText text_;
  const SourceNode& source_node_;
  const engine::ToolPolicy& policy_;
  CheckedTransport transport_;
};

}  // namespace

bool is_within_limit(CheckContext& check, const SourceNode& source_node) {
  if (source_node->items.size() <= kListEntriesMax) return true;
  check.report(source_node, "at most 1,000 entries");
  return false;
}

// Duplicates are already reported; a Value cannot hold them.
Value as_object(std::vector<Member> members) {
  std::ranges::stable_sort(members, {}, &Member::first);
  const auto twins = std::ranges::unique(members, {}, &Member::first);
  members.erase(twins.begin(), twins.end());
  return Value::object(std::move(members));
}

CheckedTransport check_transport(CheckContext& check, const SourceNode& source_node,
                                 const engine::ToolPolicy& policy, const ServerTool* server_tool) {
  TransportCheck transport(check, source_node, policy);
  return server_tool != nullptr ? transport.run(*server_tool) : transport.run();
}

Value check_connection(CheckContext& check, const SourceNode& source_node) {
  const engine::ToolPolicy none;
  return TransportCheck(check, source_node, none).connection();
}

}  // namespace ae::agents
