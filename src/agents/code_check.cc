#include "agents/code_check.h"

#include <fmt/core.h>

#include <algorithm>
#include <set>
#include <utility>
#include <vector>

#include "agents/child_check.h"
#include "agents/code_functions.h"
#include "agents/send_tool.h"
#include "agents/tool_names.h"
#include "base/hash.h"
#include "base/ids.h"
#include "json/json.h"
#include "log/field_names.h"
#include "plan/job_tools.h"

namespace ae::agents {
namespace {

// The limit of a plan is 4,096 tools, with the functions that all code may run.
constexpr std::size_t kUsesMax = 4'096 - kCodeFunctions.size();

// SHA-256 of the agent's definition without the version of its code.
std::string digest_of_definition(const Value& definition) {
  std::vector<Member> code(definition[field::code].members().begin(),
                           definition[field::code].members().end());
  std::erase_if(code, [](const Member& member) { return member.first == field::version; });
  return to_hex(sha256(canonical(definition.with(field::code, Value::object(std::move(code))))));
}

class CodeCheck {
 public:
  CodeCheck(CheckContext& check, const SourceNode& agent, const CodeContext& context)
      : check_(check), agent_(agent), context_(context) {}

  CheckedCode run(const SourceNode& source_node) {
    if (!check_.mapping(source_node, Mapping::code)) return {};
    const std::size_t before = check_.count();
    code_.emplace_back(field::agent, context_.agent);
    if (const auto language =
            check_.required(source_node, "language",
                            fmt::format("one of {}", join_names(words_of(Words::code_language))))) {
      if (const auto word = check_.word(*language, Words::code_language)) {
        code_.emplace_back("language", *word);
      }
    }
    if (const auto version = source_node.find(field::version)) this->version(*version);
    if (const auto most = source_node.find("parallel")) {
      if (const auto count = check_.count(*most, engine::kCodeParallelMax)) {
        code_.emplace_back("parallel", static_cast<double>(*count));
      }
    }
    if (const auto on_exception = source_node.find("on_exception")) {
      if (check_.word(*on_exception, Words::on_exception) == "fail") {
        code_.emplace_back("on_exception", "fail");
      }
    }
    if (const auto schema = agent_.find("output_schema")) {
      if (check_.schema(*schema)) code_.emplace_back("output_schema", (*schema)->value());
    }
    uses(source_node);
    if (check_.count() == before) {
      code_.emplace_back("digest", digest_of_definition(agent_->value()));
    }
    return {.code = Value::object(std::move(code_)), .version = std::move(version_)};
  }

 private:
  void version(const SourceNode& source_node) {
    const auto text = check_.text(source_node);
    if (!text) return;
    if (!is_capability(*text)) {
      return check_.report(source_node,
                           "a version must have 1 to 64 of the characters A-Z a-z 0-9 . _ -");
    }
    version_ = *text;
    code_.emplace_back(field::version, *text);
    const auto versions = agent_.find("versions");
    if (const auto execution = versions ? versions->find("execution") : std::nullopt) {
      check_.report(*execution,
                    "`code.version` is the execution version of this agent; remove `execution`");
    }
  }

  void uses(const SourceNode& source_node) {
    for (const std::string_view name : kCodeFunctions) names_.emplace(name);
    if (const auto list = source_node.find("uses"); list && check_.list(*list)) {
      for (std::size_t i = 0; i < (*list)->items.size() && !check_.full(); ++i) {
        use(list->item(i));
      }
      if (names_.size() > kUsesMax + kCodeFunctions.size()) {
        check_.report(*list, fmt::format("code can use at most {} tools and models", kUsesMax));
      }
    }
    code_.emplace_back("tools", Value::array(std::vector<Value>(names_.begin(), names_.end())));
  }

  void use(const SourceNode& entry) {
    const std::string_view name =
        entry->is_string() ? std::string_view(entry->scalar.as_string()) : std::string_view();
    if (is_code_function(name) || is_code_function_pattern(name)) {
      return check_.report(entry, fmt::format("code may always run {}; remove it", quote(name)));
    }
    if (name.starts_with(kModelToolPrefix)) {
      return use_model(entry, name.substr(kModelToolPrefix.size()));
    }
    if (name.starts_with(engine::kChildToolPrefix)) {
      return use_agent(entry, name.substr(engine::kChildToolPrefix.size()));
    }
    if (name == engine::kSendTool) return add(context_.used.add_send_tool());
    const CallableTools& callable = context_.callable;
    if (!callable.tools.contains(name) && callable.models.contains(name)) {
      return check_.report(entry, check_.describe_missing_tool(name),
                           fmt::format("{}{}", kModelToolPrefix, name));
    }
    for_each_named_tool(check_, entry, callable.tools,
                        [this](const auto& tool) { add(tool.second); });
  }

  void use_model(const SourceNode& entry, std::string_view name) {
    const CheckedModels& models = context_.callable.models;
    if (const auto found = models.find(name); found != models.end()) return add(found->second);
    const std::string nearest = check_.nearest(
        name, models, [](const auto& model) { return std::string_view(model.first); });
    check_.report(entry, fmt::format("unknown model {}", quote(name)),
                  nearest.empty() ? nearest : std::string(kModelToolPrefix) + nearest);
  }

  // Awaited or detached: the code states it with each start.
  void use_agent(const SourceNode& entry, std::string_view name) {
    if (name.ends_with(engine::kDetachedSuffix)) {
      name.remove_suffix(engine::kDetachedSuffix.size());
      return check_.report(entry, "the entry without `:detached` grants detached child jobs, too",
                           engine::child_tool_name(name, false));
    }
    if (!check_.name("an agent", name, entry.at(), entry.path)) return;
    for (const bool detached : {false, true}) {
      add(context_.used.add_child_tool(name, detached, entry.path));
    }
  }

  void add(const CheckedTool& tool) {
    context_.used.add(tool.tool.name, tool);
    names_.insert(tool.tool.name);
  }

  CheckContext& check_;
  const SourceNode& agent_;
  const CodeContext& context_;
  std::vector<Member> code_;
  std::string version_;
  std::set<std::string, std::less<>> names_;  // that it may call
};

}  // namespace

CheckedCode check_code(CheckContext& check, const SourceNode& agent, const CodeContext& context) {
  return CodeCheck(check, agent, context).run(*agent.find(field::code));
}

}  // namespace ae::agents
