// Records: redact values, prune jobs, and read the audit log.
#include <utility>

#include "api/operations.h"
#include "api/read.h"
#include "log/field_names.h"
#include "runtime/service/redact.h"
#include "store/rules.h"

namespace ae::api {
namespace {

constexpr std::size_t kRedactMax = 1000;  // values per request
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

Result<runtime::RedactRequest> parse_redact_params(const Fields& fields) {
  runtime::RedactRequest params;
  AE_ASSIGN(params.reason, fields.text(field::reason));
  if (params.reason.empty()) {
    return fail(Code::input_invalid, "\"reason\" is missing: it is kept in place of the value");
  }
  if (const Value& all = fields["all"]; !all.is_null()) {
    if (!all.is_bool()) return fail(Code::input_invalid, "\"all\" must be true or false");
    params.all = all.as_bool();
  }
  for (const auto& [name, flag] :
       {std::pair("keep_blind", &params.keep_blind), std::pair("tree", &params.tree),
        std::pair("keep_forks", &params.keep_forks)}) {
    const Value& field = fields[name];
    if (field.is_null()) continue;
    if (!field.is_bool()) {
      return fail(Code::input_invalid, "\"{}\" must be true or false", name);
    }
    *flag = field.as_bool();
  }
  if (params.tree && (!params.all || params.keep_forks)) {
    return fail(Code::input_invalid,
                "\"tree\" needs \"all\" and cannot be used "
                "with \"keep_forks\"");
  }
  if (!fields["seq"].is_null() || !fields["field"].is_null()) {
    AE_ASSIGN(runtime::ValueName name, name_of(fields["seq"], fields["field"]));
    params.values.push_back(std::move(name));
  }
  const Value& values = fields["values"];
  if (!values.is_null() && (!values.is_array() || values.size() > kRedactMax)) {
    return fail(Code::input_invalid, "\"values\" must be a list of at most {} {{seq, field}}",
                kRedactMax);
  }
  for (std::size_t i = 0; i < values.size(); ++i) {
    const Value& one = values.items()[i];
    if (!one.is_object())
      return fail(Code::input_invalid, "\"values\" must be a list of {seq, field}");
    AE_ASSIGN(runtime::ValueName name, name_of(one["seq"], one["field"]));
    params.values.push_back(std::move(name));
  }
  if (params.all == !params.values.empty()) {
    return fail(Code::input_invalid,
                "set \"seq\" and \"field\", or \"values\", or "
                "\"all\": true");
  }
  return params;
}

Value names_json(const std::vector<runtime::ValueName>& names) {
  std::vector<Value> list;
  list.reserve(names.size());
  for (const runtime::ValueName& name : names) {
    list.push_back(Value::object({{"field", name.field}, {"seq", name.seq}}));
  }
  return Value::array(std::move(list));
}

Value redacted_json(const runtime::RedactResult& redacted) {
  std::vector<Value> kept, forks;
  for (const runtime::RetainedValue& one : redacted.retained) {
    kept.push_back(Value::object({{"what", one.what}, {"where", one.where}, {"why", one.why}}));
  }
  for (const runtime::RedactResult& fork : redacted.forks) forks.push_back(redacted_json(fork));
  return Value::object({{"forks", Value::array(std::move(forks))},
                        {"gone", names_json(redacted.already_erased)},
                        {"job_id", redacted.job.text},
                        {"kept", Value::array(std::move(kept))},
                        {"redacted", names_json(redacted.erased)}});
}

constexpr std::size_t kPruneJobs = 512;  // per request

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

Result<runtime::PruneRequest> parse_prune_params(const Fields& fields) {
  runtime::PruneRequest params;
  AE_ASSIGN(const std::string age, fields.text("older_than"));
  if (age.empty()) {
    return fail(Code::input_invalid,
                "\"older_than\" is missing: the minimum time since the end, such as 90d");
  }
  auto older_than = duration_from_text(age);
  if (!older_than)
    return std::unexpected(std::move(older_than).error().with_context("\"older_than\""));
  params.older_than = *older_than;
  AE_ASSIGN(params.statuses, statuses_of(fields["status"]));
  AE_ASSIGN(params.agent, fields.text(field::agent));
  const Value& labels = fields[field::labels];
  if (!labels.is_null() && !labels.is_object()) {
    return fail(Code::input_invalid, "\"labels\" must be an object of strings");
  }
  if (labels.is_object()) {
    for (const auto& [key, value] : labels.members()) {
      if (!value.is_string())
        return fail(Code::input_invalid, "\"labels\" must be an object of strings");
      params.labels.emplace_back(key, value.as_string());
    }
  }
  if (const Value& dry = fields["dry_run"]; !dry.is_null()) {
    if (!dry.is_bool()) return fail(Code::input_invalid, "\"dry_run\" must be true or false");
    params.dry_run = dry.as_bool();
  }
  if (const Value& after = fields["after"]; !after.is_null()) {
    if (!after.is_integer() || after.as_int() < 0) {
      return fail(Code::input_invalid, "\"after\" must be the \"next\" of a response");
    }
    params.after = static_cast<std::uint64_t>(after.as_int());
  }
  params.jobs_max = kPruneJobs;
  return params;
}

Value pruned_json(const runtime::PruneResult& pruned) {
  std::vector<Value> left;
  left.reserve(pruned.skipped.size());
  for (const auto& [job, error] : pruned.skipped) {
    left.push_back(Value::object(
        {{field::code, code_name(error.code)}, {"id", job.text}, {"message", error.message}}));
  }
  const auto time = [](const std::optional<Instant>& at) {
    return at ? Value(to_text(*at)) : Value();
  };
  return Value::object({{"before", to_text(pruned.before)},
                        {"events", pruned.events},
                        {"jobs", pruned.jobs},
                        {"left", Value::array(std::move(left))},
                        {"left_jobs", pruned.skipped_jobs},
                        {"more", pruned.next.has_value()},
                        {"newest", time(pruned.newest)},
                        {"next", pruned.next ? Value(*pruned.next) : Value()},
                        {"oldest", time(pruned.oldest)}});
}

}  // namespace

void operations::prune(ApiContext& api, RequestPtr ctx) {
  auto params = [&]() -> Result<runtime::PruneRequest> {
    const Fields fields = std::move(ctx->fields);
    AE_ASSIGN(runtime::PruneRequest read, parse_prune_params(fields));
    const Value& archive = fields["archive"];
    if (archive.is_null()) return read;
    if (!archive.is_string() || archive.as_string().empty()) {
      return fail(Code::input_invalid, "\"archive\" must be a folder path");
    }
    if (!ctx->request.local || !api.options.archive) {
      return fail(Code::unsupported,
                  "an archive folder can be set on the store's machine only, not in a request");
    }
    if (read.dry_run) return read;
    AE_ASSIGN(read.archive, api.options.archive(archive.as_string()));
    return read;
  }();
  if (!params) return ctx->refuse(params.error());
  params->by = ctx->request.by;
  const auto on_deleted = [&api, alive = api.alive.watch()](const JobId& job) {
    if (!alive) return;
    api.runtime.drop_cached(job);
    api.history.drop(job);
  };
  runtime::prune(api.store, *std::move(params), on_deleted,
                 [ctx](Result<runtime::PruneResult> pruned) {
                   if (!pruned) return ctx->refuse(pruned.error());
                   ctx->answer(200, pruned_json(*pruned));
                 });
}

void operations::redact(ApiContext& api, RequestPtr ctx) {
  auto params = [&]() -> Result<runtime::RedactRequest> {
    const Fields fields = std::move(ctx->fields);
    return parse_redact_params(fields);
  }();
  if (!params) return ctx->refuse(params.error());
  const auto job = job_id_from_text(ctx->id);
  if (!job) return ctx->refuse({Code::not_found, job.error().message});
  params->job = *job;
  params->by = ctx->request.by;
  ++api.redactions;
  runtime::redact(
      api.store, std::move(*params),
      [&api, alive = api.alive.watch(), ctx, id = *job](Result<runtime::RedactResult> redacted) {
        if (alive) {  // also after a failure: a fork may already be redacted
          --api.redactions;
          api.runtime.drop_cached(id);
          api.history.drop(id);
          if (redacted) {
            for (const runtime::RedactResult& fork : redacted->forks) {
              api.runtime.drop_cached(fork.job);
              api.history.drop(fork.job);
            }
          }
        }
        if (!redacted && redacted.error().code == Code::not_found) {
          return ctx->refuse(missing_job_error(ctx->id));
        }
        if (!redacted) return ctx->refuse(redacted.error());
        ctx->answer(200, redacted_json(*redacted));
      });
}

void operations::audit(ApiContext& api, RequestPtr ctx) {
  const auto after = ctx->query.number("after");
  const auto limit = ctx->query.limit(kEntriesMax, kEntriesMax);
  if (!after || !limit) return ctx->refuse(after ? limit.error() : after.error());
  const std::size_t most = *limit;
  // The hash of the preceding entry is needed for the first one.
  const std::uint64_t from = after->value_or(0);
  api.store.read_audit_log(from == 0 ? 0 : from - 1, [&api, alive = api.alive.watch(), ctx, from,
                                                      most](Result<store::AuditLog> log) {
    if (!alive) return;
    if (!log) return ctx->refuse(log.error());
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
    answer_large(api, ctx,
                 Value::object({{"entries", Value::array(std::move(entries))}, {"next", next}}));
  });
}

void operations::verify_audit(ApiContext& api, RequestPtr ctx) {
  api.store.read_audit_log(0, [ctx](Result<store::AuditLog> log) {
    if (!log) return ctx->refuse(log.error());
    const store::AuditVerification proof = store::verify_audit_log(*log);
    ctx->answer(200, Value::object({{field::detail, proof.detail},
                                    {"entries", proof.entries},
                                    {"head", proof.head},
                                    {"ok", proof.ok}}));
  });
}

}  // namespace ae::api
