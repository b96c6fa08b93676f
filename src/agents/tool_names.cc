#include "agents/tool_names.h"

#include <string>
#include <string_view>

namespace ae::agents {

void for_each_named_tool(CheckContext& check, const SourceNode& entry, const CheckedTools& tools,
                         const std::function<void(const CheckedTools::value_type&)>& visit) {
  const auto name = check.text(entry);
  if (!name) return;
  if (!name->ends_with('*')) {
    const auto found = tools.find(*name);
    if (found != tools.end()) return visit(*found);
    if (check.may_be_unknown(*name)) return;
    return check.report(
        entry, check.describe_missing_tool(*name),
        check.nearest(*name, tools, [](const auto& tool) { return std::string_view(tool.first); }));
  }
  const std::string_view prefix = std::string_view(*name).substr(0, name->size() - 1);
  if (prefix.find('*') != prefix.npos || (!prefix.empty() && !prefix.ends_with('.'))) {
    return check.report(entry, "a pattern must be NAME.* (all tools of a server) or *");
  }
  bool any = false;
  for (const auto& tool : tools) {
    if (!tool.first.starts_with(prefix)) continue;
    visit(tool);
    any = true;
  }
  if (!any && !check.may_be_unknown(*name)) check.report(entry, "no tool of this file matches");
}

}  // namespace ae::agents
