#include "app/supervise.h"

#include "tools/command/supervisor.h"

namespace ae::app {

std::optional<int> supervise(int argc, char** argv) {
  if (!tools::is_supervisor(argc, argv)) return std::nullopt;
  return tools::supervise_main(argc, argv);
}

}  // namespace ae::app
