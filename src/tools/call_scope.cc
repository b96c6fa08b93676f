#include "tools/call_scope.h"

#include <cstdint>

#include "log/field_names.h"

namespace ae::tools {

CallScope::CallScope(const Call& call)
    : args_(call.args),
      call_(Value::object({{"key", call.key.text},
                           {field::external_key, call.external_key.text},
                           {field::invocation_id, call.invocation.text},
                           {field::try_, static_cast<std::uint64_t>(call.try_no)}})) {}

const Value* CallScope::root(std::string_view name) const {
  return name == "args" ? &args_ : name == "call" ? &call_ : nullptr;
}

}  // namespace ae::tools
