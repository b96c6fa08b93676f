// The names of a query, and the JSON object in a request body.
#include <algorithm>

#include "api/api.h"
#include "api/request_context.h"
#include "json/json.h"
#include "log/field_names.h"

namespace ae::api {
namespace {

constexpr std::size_t kTextMax = 256;  // of names, keys and ids (store.h)

// The object with the fields under their names instead of older ones. Fails with input_invalid: it
// has a field under both.
Result<Value> rename_aliases(const Value& object, std::span<const BodyField> known) {
  std::vector<Member> members(object.members().begin(), object.members().end());
  bool has_alias = false;
  for (auto& [name, value] : members) {
    const auto field = std::ranges::find(known, name, &BodyField::name);
    if (field == known.end() || field->alias_of.empty()) continue;
    if (object.find(field->alias_of) != nullptr) {
      return fail(Code::input_invalid, "the field \"{}\" is an alias of \"{}\"; omit it", name,
                  field->alias_of);
    }
    name = field->alias_of;
    has_alias = true;
  }
  return has_alias ? Value::object(std::move(members)) : object;
}

}  // namespace

Status RequestContext::parse() {
  // A probe may add parameters of its own.
  if (route->access != Access::open) {
    query.rename_aliases(route->query);
    AE_TRY(query.check_names(route->query));
  }
  if (route->fields.empty()) return {};
  AE_ASSIGN(fields, Fields::parse(request.body, route->fields));
  return {};
}

Result<Fields> Fields::parse(const std::string& body, std::span<const BodyField> known) {
  if (body.size() > kBodyMax) {
    return fail(Code::payload_too_large, "a request body can have at most 4 MiB");
  }
  Fields fields;
  fields.object_ = Value::object({});
  if (!body.empty()) {
    auto value = parse_json(body, {.bytes_max = kBodyMax});
    if (!value) return std::unexpected(std::move(value).error().with_context("the request"));
    fields.object_ = std::move(*value);
  }
  if (!fields.object_.is_object()) {
    return fail(Code::input_invalid, "the request must be a JSON object");
  }
  for (const auto& [name, value] : fields.object_.members()) {
    const auto field = std::ranges::find(known, name, &BodyField::name);
    if (field != known.end() && field->unsupported.empty()) continue;
    if (field != known.end()) {
      return fail(Code::unsupported, "\"{}\": {}", name, field->unsupported);
    }
    std::string names;
    for (const BodyField& one : known) {
      if (!one.unsupported.empty() || !one.alias_of.empty()) continue;
      names.append(names.empty() ? "" : ", ").append(one.name);
    }
    return fail(Code::input_invalid, "the field \"{}\" is unknown; allowed fields: {}",
                name.substr(0, 64), names);
  }
  AE_ASSIGN(fields.object_, rename_aliases(fields.object_, known));
  return fields;
}

Result<std::string> Fields::text(std::string_view name) const {
  const Value& value = object_[name];
  if (value.is_null()) return std::string();
  if (!value.is_string()) {
    return fail(Code::input_invalid, "\"{}\" must be a string", name);
  }
  if (value.as_string().size() > kTextMax) {
    return fail(Code::input_invalid, "\"{}\" can have at most 256 bytes", name);
  }
  if (value.as_string().find('\0') != std::string::npos) {
    return fail(Code::input_invalid, "\"{}\" contains a NUL character", name);
  }
  return value.as_string();
}

Result<Duration> wait_parameter(const Query& query) {
  const std::string* text = query.find("wait");
  if (!text) return Duration(0);
  auto wait = duration_from_text(*text);
  if (!wait) return std::unexpected(std::move(wait).error().with_context("\"wait\""));
  if (*wait > kWaitMax) return fail(Code::input_invalid, "\"wait\" can be at most 5m");
  return *wait;
}

Result<std::string> idempotency_key(const ApiRequest& request, const Value& body) {
  const auto is_blank = [](std::string_view text) {
    return text.find_first_not_of(" \t\r\n\v\f") == text.npos;
  };
  const Value* const field = body.find(field::idempotency_key);
  const bool in_body = field != nullptr && !field->is_null();
  const auto& header = request.idempotency_key;
  std::string key = header ? *header : std::string(body.text(field::idempotency_key));
  if (!header && !in_body) return key;
  // An unset variable must not create a job without a key.
  if (is_blank(key) || (in_body && is_blank(field->as_string()))) {
    return fail(Code::input_invalid, "an idempotency key cannot be blank; omit it instead");
  }
  if (header && std::ranges::any_of(*header, [](char c) { return c < 0x20 || c > 0x7e; })) {
    return fail(Code::input_invalid,
                "the header Idempotency-Key must be ASCII; use the field \"idempotency_key\" for "
                "other characters");
  }
  if (header && in_body && field->as_string() != *header) {
    return fail(Code::input_invalid, "the header Idempotency-Key and \"idempotency_key\" differ");
  }
  if (key.size() > kTextMax) {
    return fail(Code::input_invalid, "an idempotency key can have at most 256 bytes");
  }
  return key;
}

}  // namespace ae::api
