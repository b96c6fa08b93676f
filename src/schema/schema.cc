// JSON Schema 2020-12: compiled to nodes (schema_compile.cc), walked with a budget
// (schema_walk.cc).
#include "schema/schema.h"

#include <utility>

#include "schema/schema_nodes.h"

namespace ae {

Result<Schema> Schema::compile(const Value& schema) {
  AE_ASSIGN(auto compiled, Compiled::compile(schema));
  Schema result;
  result.root_ = std::move(compiled);
  return result;
}

std::vector<SchemaViolation> Schema::validate(const Value& instance, std::size_t* work) const {
  AE_CHECK(root_ != nullptr);
  return root_->validate(instance, work);
}

Status Schema::check(const Value& instance, std::size_t* work) const {
  const std::vector<SchemaViolation> faults = validate(instance, work);
  if (faults.empty()) return {};
  return std::unexpected(faults.front().error());
}

Error SchemaViolation::error() const {
  const std::string where = instance_path.empty() ? "the value" : instance_path;
  return {Code::input_invalid, where + " " + message};
}

}  // namespace ae
