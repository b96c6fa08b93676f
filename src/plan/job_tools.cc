#include "plan/job_tools.h"

namespace ae::engine {

std::string child_tool_name(std::string_view agent, bool detached) {
  std::string name = std::string(kChildToolPrefix) + std::string(agent);
  if (detached) name += kDetachedSuffix;
  return name;
}

}  // namespace ae::engine
