// SupervisedStdioProcesses: companions as processes under supervisors.
// Threads: the loop's.
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
  // Borrows both; they outlive it and its companions.
  SupervisedStdioProcesses(Processes& processes, SecretSource& secrets)
      : processes_(processes), secrets_(secrets) {}

  Result<std::unique_ptr<StdioProcess>> start(const Value& definition, const std::string& folder,
                                              std::vector<UsedSecret>& used,
                                              Callbacks ears) override;
  // Would `start` take this definition here? Fails as it does.
  static Status check(const Value& definition, const std::string& folder);

 private:
  Processes& processes_;
  SecretSource& secrets_;
};

}  // namespace ae::tools
