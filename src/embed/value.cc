// aetheris::Value as JSON, and its conversion.
#include <cmath>
#include <utility>

#include "base/utf8.h"
#include "embed/convert.h"
#include "json/json.h"

namespace ae::embed {
namespace {

constexpr std::int64_t kIntegerMax = (std::int64_t{1} << 53) - 1;

Result<Value> convert(const aetheris::Value& value, std::size_t depth) {
  if (depth > kJsonDepthMax) return fail(Code::input_invalid, "the value is nested too deeply");
  if (value.is_null()) return Value();
  if (value.is_bool()) return Value(value.as_bool());
  if (value.is_integer()) {
    const std::int64_t number = value.as_int();
    if (number < -kIntegerMax || number > kIntegerMax) {
      return fail(Code::input_invalid, "{} is beyond 2^53 - 1: send it as a text", number);
    }
    return Value(number);
  }
  if (value.is_number()) {
    if (!std::isfinite(value.as_double())) {
      return fail(Code::input_invalid, "a number is not finite");
    }
    return Value(value.as_double());
  }
  if (value.is_string()) {
    if (!is_utf8(value.as_string())) return fail(Code::input_invalid, "a text is not UTF-8");
    return Value(value.as_string());
  }
  if (value.is_array()) {
    std::vector<Value> items;
    items.reserve(value.size());
    for (const aetheris::Value& item : value.items()) {
      AE_ASSIGN(Value converted, convert(item, depth + 1));
      items.push_back(std::move(converted));
    }
    return Value::array(std::move(items));
  }
  std::vector<Member> members;
  members.reserve(value.size());
  for (const auto& [name, member] : value.members()) {
    if (!is_utf8(name)) return fail(Code::input_invalid, "a name is not UTF-8");
    AE_ASSIGN(Value converted, convert(member, depth + 1));
    members.emplace_back(name, std::move(converted));
  }
  return Value::object(std::move(members));
}

}  // namespace

Result<Value> to_internal(const aetheris::Value& value) { return convert(value, 0); }

aetheris::Value to_public(const Value& value) {
  switch (value.kind()) {
    case Value::Kind::null:
      return {};
    case Value::Kind::boolean:
      return value.as_bool();
    case Value::Kind::number:
      if (value.is_integer()) return value.as_int();
      return value.as_number();
    case Value::Kind::string:
      return value.as_string();
    case Value::Kind::array: {
      aetheris::Value::Array items;
      items.reserve(value.size());
      for (const Value& item : value.items()) items.push_back(to_public(item));
      return items;
    }
    case Value::Kind::object: {
      aetheris::Value::Object members;
      for (const Member& member : value.members()) {
        members.emplace(member.first, to_public(member.second));
      }
      return members;
    }
  }
  return {};
}

aetheris::Error to_public(const Error& error) {
  return {std::string(code_name(error.code)), error.message};
}

}  // namespace ae::embed

namespace aetheris {

std::string Value::to_json() const {
  const auto value = ae::embed::to_internal(*this);
  return value ? ae::canonical(*value) : "null";
}

Result<Value> Value::from_json(std::string_view json) {
  const auto value = ae::parse_json(json);
  if (!value) return std::unexpected(ae::embed::to_public(value.error()));
  return ae::embed::to_public(*value);
}

}  // namespace aetheris
