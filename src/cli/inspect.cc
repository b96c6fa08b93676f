// inspect: prints the rows of a store, read-only and without validation.
#include <fmt/core.h>

#include <optional>
#include <utility>

#include "app/instance.h"
#include "cli/shared.h"
#include "json/json.h"
#include "log/field_names.h"
#include "log/seal.h"

namespace ae::cli {
namespace {

struct InspectOptions : CommonOptions {
  std::string id;
};

std::vector<Option> inspect_options(InspectOptions& o) {
  return {{"ID", "", &o.id, "one job, with its commits and side records"}};
}

constexpr std::size_t kPage = 1000;

Value instant_or_null(const std::optional<Instant>& at) {
  return at ? Value(to_text(*at)) : Value();
}

// Parses bytes that were written as JSON; invalid ones are shown as hex.
Value record_of(const std::string& bytes) {
  constexpr JsonLimits kAny{
      .bytes_max = ~std::size_t{0}, .depth_max = kJsonDepthMax, .big_integers = true};
  auto value = parse_json(bytes, kAny);
  return value ? std::move(*value) : Value::object({{"hex", to_hex(bytes)}});
}

Value row_view(const store::JobRow& row) {
  std::vector<Member> labels;
  labels.reserve(row.labels.size());
  for (const auto& [name, value] : row.labels) labels.emplace_back(name, value);
  Value claim;
  if (row.claim) {
    claim = Value::object({{field::attempt_id, row.claim->attempt.text},
                           {field::epoch, row.claim->epoch},
                           {"lease_until", instant_or_null(row.lease_until)},
                           {"worker", row.claim_worker}});
  }
  return Value::object({{field::agent, row.agent},
                        {"claim", claim},
                        {"created_at", to_text(row.created_at)},
                        {"head", to_hex(row.head)},
                        {"id", row.id.text},
                        {field::idempotency_key, row.idempotency_key},
                        {field::labels, Value::object(std::move(labels))},
                        {"last_seq", row.last_seq},
                        {field::not_before, instant_or_null(row.not_before)},
                        {field::priority, row.priority},
                        {field::queue, row.queue},
                        {"status", row.status},
                        {"updated_at", to_text(row.updated_at)},
                        {"wake_at", instant_or_null(row.wake_at)}});
}

// Opens each commit; a damaged one shows its error, later ones only their bytes.
Value commits_view(const store::LoadedJob& loaded) {
  const BlobSource blobs = [&](const Hash& hash) -> Result<std::string> {
    for (const Blob& blob : loaded.blobs) {
      if (blob.hash == hash) return blob.bytes;
    }
    return fail(Code::log_corrupt, "a blob is missing: {}", to_hex(hash));
  };
  std::vector<Value> commits;
  std::optional<Hash> head = Hash{};
  for (const std::string& bytes : loaded.commits) {
    Value view =
        Value::object({{"bytes", std::uint64_t{bytes.size()}}, {"sha256", to_hex(sha256(bytes))}});
    if (head) {
      auto opened = open(loaded.row.id, bytes, *head, blobs);
      if (opened) {
        head = opened->head;
        std::vector<Value> types;
        for (const Event& event : opened->events) types.emplace_back(event_name(event));
        view = view.with("first_seq", opened->first_seq)
                   .with("last_seq", opened->last_seq)
                   .with("head", to_hex(opened->head))
                   .with("created_at", to_text(opened->events.front().created_at))
                   .with("types", Value::array(std::move(types)));
      } else {
        head.reset();
        view = view.with("refused", opened.error().message);
      }
    }
    commits.push_back(std::move(view));
  }
  return Value::array(std::move(commits));
}

Value job_view(const store::LoadedJob& loaded) {
  std::vector<Value> blobs, effects, ledger, inbox;
  for (const Blob& blob : loaded.blobs) {
    blobs.push_back(Value::object({{"bytes", std::uint64_t{blob.bytes.size()}},
                                   {"hash", to_hex(blob.hash)},
                                   {"whole", sha256(blob.bytes) == blob.hash}}));
  }
  for (const store::EffectRow& row : loaded.effects) {
    effects.push_back(Value::object({{field::invocation_id, row.invocation.text},
                                     {"record", record_of(row.record)},
                                     {field::try_, std::uint64_t{row.try_no}}}));
  }
  for (const store::LedgerRow& row : loaded.ledger) {
    ledger.push_back(Value::object({{field::invocation_id, row.invocation.text},
                                    {"record", record_of(row.record)},
                                    {field::state, row.state},
                                    {field::try_, std::uint64_t{row.try_no}}}));
  }
  for (const store::InboxEntry& entry : loaded.inbox) {
    inbox.push_back(Value::object(
        {{"act", record_of(entry.request)}, {"id", entry.id}, {"number", entry.number}}));
  }
  Value checkpoint;
  if (loaded.checkpoint) {
    checkpoint = Value::object({{"bytes", std::uint64_t{loaded.checkpoint->bytes.size()}},
                                {"seq", loaded.checkpoint->seq},
                                {"sha256", to_hex(sha256(loaded.checkpoint->bytes))}});
  }
  return Value::object(
      {{"blobs", Value::array(std::move(blobs))},
       {"checkpoint", checkpoint},
       {"commits", commits_view(loaded)},
       {"effects", Value::array(std::move(effects))},
       {"inbox", Value::array(std::move(inbox))},
       {"job", row_view(loaded.row)},
       {"ledger", Value::array(std::move(ledger))},
       {"signed_head", loaded.signed_head ? record_of(*loaded.signed_head) : Value()}});
}

template <class T, class Start>
T await(app::Instance& instance, Start start) {
  std::optional<T> answer;
  start(async::Done<T>([&](T value) {
    answer = std::move(value);
    instance.loop().stop();
  }));
  while (!answer) instance.loop().run();
  return std::move(*answer);
}

Result<Value> all_jobs(app::Instance& instance) {
  std::vector<Value> jobs;
  store::Filter filter{.limit = kPage};
  while (true) {
    AE_ASSIGN(const auto rows, (await<Result<std::vector<store::JobRow>>>(instance, [&](auto done) {
                instance.store().query(filter, std::move(done));
              })));
    for (const store::JobRow& row : rows) jobs.push_back(row_view(row));
    if (rows.size() < kPage) break;
    filter.after = rows.back().id.text;
    filter.after_number = rows.back().number;
  }
  return Value::object({{"jobs", Value::array(std::move(jobs))}});
}

Result<Value> one_job(app::Instance& instance, const std::string& id) {
  AE_ASSIGN(const JobId job, job_id_from_text(id));
  AE_ASSIGN(const store::LoadedJob loaded,
            (await<Result<store::LoadedJob>>(
                instance, [&](auto done) { instance.store().load(job, 1, std::move(done)); })));
  return job_view(loaded);
}

std::string count(const Value& number) {
  return number.is_integer() ? std::to_string(number.as_int()) : "?";
}

void print_jobs(const Value& body, Terminal& terminal) {
  Table table({"ID", "STATUS", "AGENT", "EVENTS", "HEAD", "HELD BY"});
  for (const Value& job : body["jobs"].items()) {
    const std::string status(job.text("status"));
    table.row({{std::string(job.text("id"))},
               {status, status_tint(status)},
               {std::string(job.text(field::agent))},
               {count(job["last_seq"])},
               {std::string(job.text("head").substr(0, 12))},
               {std::string(job["claim"].text("worker"))}});
  }
  terminal.print(table.text(terminal.out(), terminal.width()));
}

void print_job(const Value& body, Terminal& terminal) {
  const Paint& paint = terminal.out();
  const Value& job = body["job"];
  terminal.print(fmt::format("{}  {}  {}  {} events, head {}\n",
                             paint(Tint::bold, safe(job.text("id"))), safe(job.text(field::agent)),
                             safe(job.text("status")), count(job["last_seq"]),
                             safe(job.text("head"))));
  Table commits({"EVENTS", "BYTES", "HEAD", "TYPES"});
  for (const Value& commit : body["commits"].items()) {
    std::string what(commit.text("refused"));
    if (commit["types"].is_array()) {
      for (const Value& type : commit["types"].items()) {
        what += (what.empty() ? "" : " ") + type.as_string();
      }
    }
    const std::string events =
        commit["first_seq"].is_integer()
            ? fmt::format("{}-{}", count(commit["first_seq"]), count(commit["last_seq"]))
            : "?";
    commits.row({{events},
                 {count(commit["bytes"])},
                 {std::string(commit.text("head").substr(0, 12))},
                 {what}});
  }
  terminal.print(commits.text(terminal.out(), terminal.width()));
  const auto rows = [&](const char* name) {
    for (const Value& row : body[name].items()) {
      terminal.print(fmt::format("{}{}\n", pad(name, 9), safe_json(canonical(row))));
    }
  };
  for (const char* name : {"blobs", "effects", "ledger", "inbox"}) rows(name);
  for (const char* name : {"checkpoint", "signed_head"}) {
    if (!body[name].is_null()) {
      terminal.print(fmt::format("{}{}\n", pad(name, 12), safe_json(canonical(body[name]))));
    }
  }
}

int inspect_command(const InspectOptions& options, Terminal& terminal) {
  const auto body = [&]() -> Result<Value> {
    app::InstanceOptions site_options;
    AE_ASSIGN(site_options.store, store_of(options));
    AE_ASSIGN(const auto opened, app::Instance::open(std::move(site_options)));
    return options.id.empty() ? all_jobs(*opened) : one_job(*opened, options.id);
  }();
  if (!body) return terminal.fail_with(body.error());
  if (terminal.json()) {
    terminal.print_json(*body);
  } else if (options.id.empty()) {
    print_jobs(*body, terminal);
  } else {
    print_job(*body, terminal);
  }
  return kDone;
}

}  // namespace

extern const Command kInspectCommand{
    .name = "inspect",
    .group = Group::maintain,
    .target = Target::store,
    .summary = "show the rows of a store; read-only",
    .example = "aetheris inspect holiday",
    .bind = bound_command<InspectOptions, inspect_options, inspect_command>};

}  // namespace ae::cli
