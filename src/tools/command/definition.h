// CommandDefinition: a command tool's definition, validated once and rendered for each call.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "base/error.h"
#include "expr/expr.h"
#include "json/value.h"
#include "tools/command/wire.h"
#include "tools/secrets.h"
#include "tools/tool.h"

namespace ae::tools {

struct CommandDefinition {
  // Fails with plan_invalid, unsupported; the message begins with the invalid key.
  static Result<CommandDefinition> read(const Value& definition, const std::string& folder);

  // Renders the order, except for its times. Adds the secrets that it contains to `used`.
  // Fails with expression_failed, secret_missing, forbidden, input_invalid.
  Result<Order> fill(const Call& call, SecretSource& secrets, std::vector<UsedSecret>& used) const;

  using Parts = std::vector<Template::Part>;
  std::string program;  // absolute
  std::string name;     // as in the agents file
  std::vector<Parts> arguments;
  std::vector<std::pair<std::string, Parts>> variables;
  std::map<std::string, std::string> inherited;  // from our environment, read once
  std::string folder;
  Sandbox sandbox;
  bool json = false;
  bool big_integers_as_strings = false;
  std::size_t output_max = 0;
  Duration heartbeat{};  // zero: no limit
};

}  // namespace ae::tools
