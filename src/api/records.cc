// What is done to the records themselves: values dropped, and the audit log that tells of it.
#include <utility>

#include "api/asked.h"
#include "runtime/redact.h"

namespace ae::api {
namespace {

constexpr std::size_t kRedactMax = 1000;  // values of one request
constexpr std::size_t kEntriesMax = 1000;

Result<runtime::ValueName> name_of(const Value& seq, const Value& field) {
  if (!seq.is_integer() || seq.as_int() < 1) {
    return fail(Code::input_invalid, "\"seq\" is the number of the event that holds the value");
  }
  if (!field.is_null() && !field.is_string()) {
    return fail(Code::input_invalid, "\"field\" is the name of a value of that event");
  }
  return runtime::ValueName{static_cast<std::uint64_t>(seq.as_int()),
                            field.is_null() ? std::string() : field.as_string()};
}

Result<runtime::RedactRequest> wish_of(const Fields& fields) {
  runtime::RedactRequest wish;
  AE_ASSIGN(wish.reason, fields.text("reason"));
  if (wish.reason.empty()) {
    return fail(Code::input_invalid, "\"reason\" is missing: it stays, the value does not");
  }
  if (const Value& all = fields["all"]; !all.is_null()) {
    if (!all.is_bool()) return fail(Code::input_invalid, "\"all\" is true or false");
    wish.all = all.as_bool();
  }
  if (!fields["seq"].is_null() || !fields["field"].is_null()) {
    AE_ASSIGN(runtime::ValueName name, name_of(fields["seq"], fields["field"]));
    wish.values.push_back(std::move(name));
  }
  const Value& values = fields["values"];
  if (!values.is_null() && (!values.is_array() || values.size() > kRedactMax)) {
    return fail(Code::input_invalid,
                "\"values\" is a list of at most " + std::to_string(kRedactMax) + " {seq, field}");
  }
  for (std::size_t i = 0; i < values.size(); ++i) {
    const Value& one = values.items()[i];
    if (!one.is_object()) return fail(Code::input_invalid, "\"values\" is a list of {seq, field}");
    AE_ASSIGN(runtime::ValueName name, name_of(one["seq"], one["field"]));
    wish.values.push_back(std::move(name));
  }
  if (wish.all == !wish.values.empty()) {
    return fail(Code::input_invalid,
                "name the values by \"seq\" and \"field\", or \"values\", or "
                "say \"all\": true");
  }
  return wish;
}

Value names_json(const std::vector<runtime::ValueName>& names) {
  std::vector<Value> list;
  list.reserve(names.size());
  for (const runtime::ValueName& name : names) {
    list.push_back(Value::object({{"field", name.field}, {"seq", name.seq}}));
  }
  return Value::array(std::move(list));
}

}  // namespace

void Api::redact(Ask ask) {
  auto wish = [&]() -> Result<runtime::RedactRequest> {
    AE_TRY(ask->query.only({}));
    AE_ASSIGN(const Fields fields,
              Fields::parse(ask->request.body, {"seq", "field", "values", "all", "reason"}));
    return wish_of(fields);
  }();
  if (!wish) return ask->refuse(wish.error());
  const auto job = job_id_from_text(ask->id);
  if (!job) return ask->refuse({Code::not_found, job.error().message});
  wish->job = *job;
  wish->by = ask->request.by;
  runtime::redact(
      store_, std::move(*wish),
      [this, alive = std::weak_ptr(alive_), ask, id = *job](Result<runtime::Redacted> redacted) {
        if (redacted && alive.lock()) runtime_.forget(id);
        if (!redacted && redacted.error().code == Code::not_found) {
          return ask->refuse({Code::not_found, "there is no job " + ask->id +
                                                   " in this store; `aetheris jobs` lists them"});
        }
        if (!redacted) return ask->refuse(redacted.error());
        ask->answer(200, Value::object({{"gone", names_json(redacted->gone)},
                                        {"redacted", names_json(redacted->dropped)}}));
      });
}

void Api::audit(Ask ask) {
  if (auto known = ask->query.only({"after", "limit"}); !known) return ask->refuse(known.error());
  const auto after = ask->query.number("after");
  const auto limit = ask->query.number("limit");
  if (!after || !limit) return ask->refuse(after ? limit.error() : after.error());
  const std::size_t most = std::clamp<std::size_t>(limit->value_or(kEntriesMax), 1, kEntriesMax);
  // The one before the first tells its hash.
  const std::uint64_t from = after->value_or(0);
  store_.audit_log(from == 0 ? 0 : from - 1, [ask, from, most](Result<store::AuditLog> log) {
    if (!log) return ask->refuse(log.error());
    std::vector<Value> entries;
    Value next;
    Hash prev;
    for (const store::AuditRow& row : log->rows) {
      if (row.seq > from) {
        if (entries.size() == most) {
          next = entries.back()["seq"];
          break;
        }
        entries.push_back(store::audit_view(row, prev));
      }
      prev = row.hash;
    }
    ask->answer(200,
                Value::object({{"entries", Value::array(std::move(entries))}, {"next", next}}));
  });
}

void Api::verify_audit(Ask ask) {
  if (auto known = ask->query.only({}); !known) return ask->refuse(known.error());
  store_.audit_log(0, [ask](Result<store::AuditLog> log) {
    if (!log) return ask->refuse(log.error());
    const store::AuditProof proof = store::prove(*log);
    ask->answer(200, Value::object({{"detail", proof.detail},
                                    {"entries", proof.entries},
                                    {"head", proof.head},
                                    {"ok", proof.ok}}));
  });
}

}  // namespace ae::api
