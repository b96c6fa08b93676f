#include "app/supervise.h"

#include "app/guard.h"
#include "tools/command/proc.h"
#include "tools/command/supervisor.h"

namespace ae::app {

std::optional<int> supervise(int argc, char** argv) {
  if (tools::is_supervisor(argc, argv)) return tools::supervise_main(argc, argv);
  if (is_guard(argc, argv)) return guard_main(argc, argv);
  tools::name_process();
  return std::nullopt;
}

}  // namespace ae::app
