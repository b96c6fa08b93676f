// CallScope: what the expressions of a tool's definition read: `.args` and `.call`.
//
// Threads: a value. Borrows the arguments of the call.
#pragma once

#include <string_view>

#include "expr/expr.h"
#include "json/value.h"
#include "tools/tool.h"

namespace ae::tools {

class CallScope final : public ExprScope {
 public:
  explicit CallScope(const Call& call);
  const Value* root(std::string_view name) const override;
  const Value* step(std::string_view) const override { return nullptr; }
  Value steps() const override { return {}; }

 private:
  const Value& args_;
  Value call_;
};

}  // namespace ae::tools
