// What is done to the records themselves: values dropped, jobs deleted, and the audit log that tells of it.
#include <utility>

#include "api/asked.h"
#include "runtime/redact.h"
#include "store/rules.h"

namespace ae::api {
namespace {

constexpr std::size_t kRedactMax = 1000;  // values of one request
constexpr std::size_t kEntriesMax = 1000;

Result<runtime::ValueName> name_of(const Value& seq, const Value& field) {
  if (!seq.is_integer() || seq.as_int() < 1) {
    return fail(Code::input_invalid, "\"seq\" must be the number of the event with the value");
  }
  if (!field.is_null() && !field.is_string()) {
    return fail(Code::input_invalid, "\"field\" must be the name of a value of that event");
  }
  return runtime::ValueName{static_cast<std::uint64_t>(seq.as_int()),
                            field.is_null() ? std::string() : field.as_string()};
}

Result<runtime::RedactRequest> wish_of(const Fields& fields) {
  runtime::RedactRequest wish;
  AE_ASSIGN(wish.reason, fields.text("reason"));
  if (wish.reason.empty()) {
    return fail(Code::input_invalid, "\"reason\" is missing: it is kept in place of the value");
  }
  if (const Value& all = fields["all"]; !all.is_null()) {
    if (!all.is_bool()) return fail(Code::input_invalid, "\"all\" must be true or false");
    wish.all = all.as_bool();
  }
  for (const auto& [name, flag] :
       {std::pair("keep_blind", &wish.keep_blind), std::pair("tree", &wish.tree),
        std::pair("keep_forks", &wish.keep_forks)}) {
    const Value& said = fields[name];
    if (said.is_null()) continue;
    if (!said.is_bool()) {
      return fail(Code::input_invalid, "\"" + std::string(name) + "\" must be true or false");
    }
    *flag = said.as_bool();
  }
  if (wish.tree && (!wish.all || wish.keep_forks)) {
    return fail(Code::input_invalid,
                "\"tree\" needs \"all\" and cannot be used "
                "with \"keep_forks\"");
  }
  if (!fields["seq"].is_null() || !fields["field"].is_null()) {
    AE_ASSIGN(runtime::ValueName name, name_of(fields["seq"], fields["field"]));
    wish.values.push_back(std::move(name));
  }
  const Value& values = fields["values"];
  if (!values.is_null() && (!values.is_array() || values.size() > kRedactMax)) {
    return fail(Code::input_invalid, "\"values\" must be a list of at most " +
                                         std::to_string(kRedactMax) + " {seq, field}");
  }
  for (std::size_t i = 0; i < values.size(); ++i) {
    const Value& one = values.items()[i];
    if (!one.is_object())
      return fail(Code::input_invalid, "\"values\" must be a list of {seq, field}");
    AE_ASSIGN(runtime::ValueName name, name_of(one["seq"], one["field"]));
    wish.values.push_back(std::move(name));
  }
  if (wish.all == !wish.values.empty()) {
    return fail(Code::input_invalid,
                "set \"seq\" and \"field\", or \"values\", or "
                "\"all\": true");
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

Value redacted_json(const runtime::Redacted& redacted) {
  std::vector<Value> kept, forks;
  for (const runtime::KeptValue& one : redacted.kept) {
    kept.push_back(Value::object({{"what", one.what}, {"where", one.where}, {"why", one.why}}));
  }
  for (const runtime::Redacted& fork : redacted.forks) forks.push_back(redacted_json(fork));
  return Value::object({{"forks", Value::array(std::move(forks))},
                        {"gone", names_json(redacted.gone)},
                        {"job_id", redacted.job.text},
                        {"kept", Value::array(std::move(kept))},
                        {"redacted", names_json(redacted.dropped)}});
}

constexpr std::size_t kPruneJobs = 512;  // of one request

Result<std::vector<std::string>> statuses_of(const Value& status) {
  std::vector<std::string> all;
  bool fine = status.is_null() || (status.is_array() && status.size() > 0);
  for (std::size_t i = 0; fine && i < status.size(); ++i) {
    const Value& one = status.items()[i];
    fine = one.is_string() && store::has_ended(one.as_string());
    if (fine) all.push_back(one.as_string());
  }
  if (!fine) {
    return fail(Code::input_invalid,
                "\"status\" must be a list of completed, failed and cancelled");
  }
  return all;
}

Result<runtime::PruneRequest> prune_of(const Fields& fields) {
  runtime::PruneRequest wish;
  AE_ASSIGN(const std::string age, fields.text("older_than"));
  if (age.empty()) {
    return fail(Code::input_invalid,
                "\"older_than\" is missing: the minimum time since the end, such as 90d");
  }
  auto older_than = duration_from_text(age);
  if (!older_than) return std::unexpected(std::move(older_than).error().in("\"older_than\""));
  wish.older_than = *older_than;
  AE_ASSIGN(wish.statuses, statuses_of(fields["status"]));
  AE_ASSIGN(wish.agent, fields.text("agent"));
  const Value& labels = fields["labels"];
  if (!labels.is_null() && !labels.is_object()) {
    return fail(Code::input_invalid, "\"labels\" must be an object of strings");
  }
  if (labels.is_object()) {
    for (const auto& [key, value] : labels.members()) {
      if (!value.is_string())
        return fail(Code::input_invalid, "\"labels\" must be an object of strings");
      wish.labels.emplace_back(key, value.as_string());
    }
  }
  if (const Value& dry = fields["dry_run"]; !dry.is_null()) {
    if (!dry.is_bool()) return fail(Code::input_invalid, "\"dry_run\" must be true or false");
    wish.dry_run = dry.as_bool();
  }
  if (const Value& after = fields["after"]; !after.is_null()) {
    if (!after.is_integer() || after.as_int() < 0) {
      return fail(Code::input_invalid, "\"after\" must be the \"next\" of a response");
    }
    wish.after = static_cast<std::uint64_t>(after.as_int());
  }
  wish.jobs_max = kPruneJobs;
  return wish;
}

Value pruned_json(const runtime::Pruned& pruned) {
  std::vector<Value> left;
  left.reserve(pruned.left.size());
  for (const auto& [job, error] : pruned.left) {
    left.push_back(Value::object(
        {{"code", code_name(error.code)}, {"id", job.text}, {"message", error.message}}));
  }
  const auto time = [](const std::optional<Instant>& at) {
    return at ? Value(to_text(*at)) : Value();
  };
  return Value::object({{"before", to_text(pruned.before)},
                        {"events", pruned.events},
                        {"jobs", pruned.jobs},
                        {"left", Value::array(std::move(left))},
                        {"left_jobs", pruned.left_jobs},
                        {"more", pruned.next.has_value()},
                        {"newest", time(pruned.newest)},
                        {"next", pruned.next ? Value(*pruned.next) : Value()},
                        {"oldest", time(pruned.oldest)}});
}

}  // namespace

void Api::prune(Ask ask) {
  auto wish = [&]() -> Result<runtime::PruneRequest> {
    AE_TRY(ask->query.only({}));
    AE_ASSIGN(const Fields fields,
              Fields::parse(ask->request.body, {"older_than", "status", "agent", "labels",
                                                "archive", "dry_run", "after"}));
    AE_ASSIGN(runtime::PruneRequest read, prune_of(fields));
    const Value& archive = fields["archive"];
    if (archive.is_null()) return read;
    if (!archive.is_string() || archive.as_string().empty()) {
      return fail(Code::input_invalid, "\"archive\" must be a folder path");
    }
    if (!ask->request.local || !options_.archive) {
      return fail(Code::unsupported,
                  "an archive folder can be set on the store's machine only, not in a request");
    }
    if (read.dry_run) return read;
    AE_ASSIGN(read.archive, options_.archive(archive.as_string()));
    return read;
  }();
  if (!wish) return ask->refuse(wish.error());
  wish->by = ask->request.by;
  const auto gone = [this, alive = std::weak_ptr(alive_)](const JobId& job) {
    if (!alive.lock()) return;
    runtime_.forget(job);
    marks_.erase(job);
  };
  runtime::prune(store_, *std::move(wish), gone, [ask](Result<runtime::Pruned> pruned) {
    if (!pruned) return ask->refuse(pruned.error());
    ask->answer(200, pruned_json(*pruned));
  });
}

void Api::redact(Ask ask) {
  auto wish = [&]() -> Result<runtime::RedactRequest> {
    AE_TRY(ask->query.only({}));
    AE_ASSIGN(const Fields fields,
              Fields::parse(ask->request.body, {"seq", "field", "values", "all", "reason",
                                                "keep_blind", "tree", "keep_forks"}));
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
        if (alive.lock()) {  // also after a failure: a fork may have been redacted before it
          runtime_.forget(id);
          if (redacted) {
            for (const runtime::Redacted& fork : redacted->forks) runtime_.forget(fork.job);
          }
        }
        if (!redacted && redacted.error().code == Code::not_found) {
          return ask->refuse(no_job(ask->id));
        }
        if (!redacted) return ask->refuse(redacted.error());
        ask->answer(200, redacted_json(*redacted));
      });
}

void Api::audit(Ask ask) {
  if (auto known = ask->query.only({"after", "limit"}); !known) return ask->refuse(known.error());
  const auto after = ask->query.number("after");
  const auto limit = ask->query.limit(kEntriesMax, kEntriesMax);
  if (!after || !limit) return ask->refuse(after ? limit.error() : after.error());
  const std::size_t most = *limit;
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
