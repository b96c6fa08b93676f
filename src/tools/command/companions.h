// CommandCompanions: companions as processes under supervisors.
// Threads: the loop's.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tools/command/processes.h"
#include "tools/companion.h"
#include "tools/secrets.h"

namespace ae::tools {

class CommandCompanions final : public Companions {
 public:
  // Borrows both; they outlive it and its companions.
  CommandCompanions(Processes& processes, SecretSource& secrets)
      : processes_(processes), secrets_(secrets) {}

  Result<std::unique_ptr<Companion>> start(const Value& definition, const std::string& folder,
                                           std::vector<UsedSecret>& used, Ears ears) override;
  // Would `start` take this definition here? Fails as it does.
  static Status check(const Value& definition, const std::string& folder);

 private:
  Processes& processes_;
  SecretSource& secrets_;
};

}  // namespace ae::tools
