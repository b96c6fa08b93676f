#include "cli/served_agents.h"

#include <fmt/core.h>

#include <utility>

#include "cli/text.h"

namespace ae::cli {
namespace {

// The place of a fault in a worker's own definitions: "agents.refund.code.uses[0]" is "uses[0]" of
// the agent refund.
std::string worker_place(std::string_view path) {
  const auto take = [&path](std::string_view end) {
    const std::string_view word = path.substr(0, path.find_first_of(end));
    path.remove_prefix(word.size());
    if (path.starts_with('.')) path.remove_prefix(1);
    return std::string(word);
  };
  std::string section = take(".");
  if (section != "agents" && section != "tools") return section;
  std::string text = fmt::format("{} {}", section.substr(0, section.size() - 1), take(".["));
  if (path.starts_with("code.")) path.remove_prefix(5);
  if (!path.empty()) text += fmt::format(", {}", path);
  return text;
}

bool is_of_worker(std::string_view path, const routines::Definitions& offered) {
  const auto names = [&](std::string_view section, std::string_view name) {
    const std::string start = fmt::format("{}.{}", section, name);
    return path.starts_with(start) &&
           (path.size() == start.size() || path[start.size()] == '.' || path[start.size()] == '[');
  };
  for (const auto& agent : offered.agents) {
    if (names("agents", agent.name)) return true;
  }
  for (const auto& tool : offered.tools) {
    if (names("tools", tool.name)) return true;
  }
  return false;
}

}  // namespace

std::vector<std::string> fault_lines(const std::vector<agents::Diagnostic>& faults,
                                     std::string_view worker) {
  std::vector<std::string> lines;
  for (const agents::Diagnostic& fault : faults) {
    const bool is_in_file = fault.line > 0;
    std::string where = is_in_file ? fmt::format("{}:{}:{}", fault.file, fault.line, fault.column)
                                   : std::string(worker);
    if (!fault.path.empty()) where += ": " + (is_in_file ? fault.path : worker_place(fault.path));
    const std::string hint =
        fault.suggestion.empty() ? "" : fmt::format(" (did you mean {}?)", fault.suggestion);
    lines.push_back(safe(fmt::format("{}: {}{}", where, fault.message, hint)));
  }
  return lines;
}

std::vector<agents::Diagnostic> ServedAgents::accept(const routines::Definitions& offered) {
  std::vector<Value> agents, tools;
  for (const auto& agent : offered.agents) agents.push_back(agent.definition);
  for (const auto& tool : offered.tools) tools.push_back(tool.definition);
  const auto is_in_file = [this](std::string_view name) {
    return loaded_.file.agents.contains(name) || loaded_.file.tools.contains(name);
  };
  const std::string before = of_workers_.code();
  auto faults = of_workers_.add(
      {.principal = offered.principal, .agents = agents, .tools = tools},
      {.is_in_file = is_in_file,
       .is_superseded =
           [this](std::string_view agent, std::string_view version) {
             return instance_ != nullptr &&
                    instance_->is_superseded({std::string(agent), std::string(version)});
           },
       .load = [this](const std::string& code) { return check(code); }});
  for (agents::Diagnostic& fault : faults) {
    if (!is_of_worker(fault.path, offered)) continue;
    fault.file = offered.worker;
    fault.line = fault.column = 0;
  }
  const bool changes = of_workers_.code() != before;
  const bool is_reloading = changes || !reloader_ || reloader_->is_reloading();
  callbacks_.on_worker(offered, faults, faults.empty() && !is_reloading);
  if (changes && reloader_) reloader_->reload_soon();
  return faults;
}

app::AgentsFileOptions ServedAgents::load_options(std::string code) const {
  return {.servers = app::ServerListing::never,
          .policies = options_.policies,
          .code = std::move(code),
          .needs_agents = false};
}

// The faults of the first file with this code.
std::vector<agents::Diagnostic> ServedAgents::check(const std::string& code) const {
  const auto loaded = app::load_agents(first_file(), load_options(code));
  if (loaded) return loaded->diagnostics;
  return {{.code = loaded.error().code, .message = loaded.error().message}};
}

Result<app::LoadedAgents> ServedAgents::load() const {
  return app::load_agents(first_file(), load_options(of_workers_.code()));
}

void ServedAgents::begin(app::Instance& instance, bool is_watching) {
  reloader_.emplace(instance,
                    app::Reloader::Options{.files = options_.files,
                                           .policies = options_.policies,
                                           .is_watching = is_watching,
                                           .code = [this] { return loading_ = of_workers_.code(); },
                                           .needs_agents = false},
                    loaded_, [this](const app::Reloader::Report& report) {
                      if (!report.error && report.diagnostics.empty()) in_use_ = loading_;
                      callbacks_.on_reload(report);
                    });
  reloader_->begin();
  if (!of_workers_.code().empty()) reloader_->reload_soon();
}

}  // namespace ae::cli
