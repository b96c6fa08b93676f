// SupervisedStdioProcesses: runs each StdioProcess under a supervisor. Threads: the loop's.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tools/command/processes.h"
#include "tools/secrets.h"
#include "tools/stdio_process.h"

namespace ae::tools {

class SupervisedStdioProcesses final : public StdioProcesses {
 public:
  // Borrows both; they outlive this object and its processes.
  SupervisedStdioProcesses(Processes& processes, SecretSource& secrets)
      : processes_(processes), secrets_(secrets) {}

  Result<std::unique_ptr<StdioProcess>> start(const Value& definition, const std::string& folder,
                                              std::vector<UsedSecret>& used,
                                              Callbacks callbacks) override;
  // Fails if `start` would reject this definition, with the same error.
  static Status check(const Value& definition, const std::string& folder);

 private:
  Processes& processes_;
  SecretSource& secrets_;
};

}  // namespace ae::tools
