// Schema: validates a Value by JSON Schema 2020-12, small and total
// (docs/decisions/0004-json-schema.md).
//
// A schema is checked when it is compiled: unknown or unsupported keywords are rejected, never
// ignored silently (annotations such as title, description, default, examples, $comment, deprecated
// and format are allowed).
// Threads: compiled schemas are immutable values; validation is a pure function.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "json/value.h"

namespace ae {

struct SchemaViolation {
  std::string instance_path;  // JSON pointer into the value ("" = the whole)
  std::string schema_path;    // JSON pointer into the schema
  std::string message;        // "must be a string"

  // With input_invalid and the path.
  Error error() const;
};

class Schema {
 public:
  // Fails with plan_invalid; the message names the JSON pointer of the keyword. Only local $ref
  // ("#/$defs/…").
  static Result<Schema> compile(const Value& schema);
  // Empty = valid. At most 16 violations. Work is bounded: a $ref loop, too much nesting and too
  // much work are violations. Adds the cost to `work`, in evaluation steps (ExprLimits::fuel).
  std::vector<SchemaViolation> validate(const Value& instance, std::size_t* work = nullptr) const;
  // Fails with input_invalid and the path of the first violation.
  Status check(const Value& instance, std::size_t* work = nullptr) const;

 private:
  struct Compiled;
  std::shared_ptr<const Compiled> root_;
};

}  // namespace ae
