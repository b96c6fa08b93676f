// prune: deletes jobs that ended long ago, a few hundred per request, until none is left.
#include <fmt/core.h>

#include <algorithm>
#include <filesystem>
#include <utility>

#include "api/problem.h"
#include "app/api_client.h"
#include "base/counted.h"
#include "cli/progress_line.h"
#include "cli/shared.h"
#include "cli/text.h"
#include "json/json.h"
#include "log/field_names.h"
#include "store/rules.h"

namespace ae::cli {
namespace {

struct PruneOptions : CommonOptions {
  std::string older_than, status, agent, archive;
  std::vector<std::string> labels;
  bool dry_run = false;
};

std::vector<Option> prune_options(PruneOptions& o) {
  return {
      {"--older-than", "DURATION", &o.older_than,
       "minimum time since the end, such as 90d (store clock)", kRequired},
      {"--status", "LIST", &o.status,
       "comma-separated: completed, failed, cancelled (default: all)"},
      {"--agent", "NAME", &o.agent, "only jobs of this agent"},
      {"--label", "NAME=VALUE", &o.labels, "NAME=VALUE; all must match"},
      {"--archive", "DIR", &o.archive, "write each job's log to DIR/ID.json before deleting it"},
      {"--dry-run", "", &o.dry_run, "only count"}};
}

constexpr std::size_t kLeftShown = 10;

Result<Value> statuses_of(const std::string& text) {
  std::vector<Value> all;
  for (std::size_t from = 0; from <= text.size();) {
    const std::size_t end = std::min(text.find(',', from), text.size());
    const std::string one = text.substr(from, end - from);
    if (!store::has_ended(one)) {
      return fail(Code::usage,
                  "--status must be a comma-separated list of completed, "
                  "failed and cancelled, not \"{}\"",
                  one.substr(0, 64));
    }
    all.emplace_back(one);
    from = end + 1;
  }
  return Value::array(std::move(all));
}

Result<std::vector<Member>> parse_prune_params(const PruneOptions& options) {
  if (auto age = duration_from_text(options.older_than); !age) {
    return fail(Code::usage, "--older-than: {}", age.error().message);
  }
  std::vector<Member> params{{"older_than", options.older_than}, {"dry_run", options.dry_run}};
  if (!options.status.empty()) {
    AE_ASSIGN(Value statuses, statuses_of(options.status));
    params.emplace_back("status", std::move(statuses));
  }
  if (!options.agent.empty()) params.emplace_back(field::agent, options.agent);
  AE_ASSIGN(Value labels, labels_of(options.labels));
  if (!labels.members().empty()) params.emplace_back(field::labels, std::move(labels));
  if (!options.archive.empty()) {
    // The process that owns the store has another working directory.
    std::error_code unknown;
    const auto whole = std::filesystem::absolute(options.archive, unknown).lexically_normal();
    if (unknown) return fail(Code::usage, "--archive: {}", unknown.message());
    params.emplace_back("archive", whole.string());
  }
  return params;
}

// The sums over all requests.
struct PruneTotals {
  std::uint64_t jobs = 0, events = 0, left_jobs = 0;
  std::string oldest, newest, before;  // instants as text, compared as text
  std::vector<Value> left;

  void add(const Value& body) {
    jobs += static_cast<std::uint64_t>(body["jobs"].as_int());
    events += static_cast<std::uint64_t>(body["events"].as_int());
    left_jobs += static_cast<std::uint64_t>(body["left_jobs"].as_int());
    const std::string first(body.text("oldest")), last(body.text("newest"));
    if (!first.empty() && (oldest.empty() || first < oldest)) oldest = first;
    if (last > newest) newest = last;
    if (before.empty()) before = body.text("before");
    for (const Value& one : body["left"].items()) {
      if (left.size() < 100) left.push_back(one);
    }
  }
  Value json(bool dry_run) const {
    const auto time = [](const std::string& at) { return at.empty() ? Value() : Value(at); };
    return Value::object({{"before", before},
                          {"dry_run", dry_run},
                          {"events", events},
                          {"jobs", jobs},
                          {"left", Value::array(left)},
                          {"left_jobs", left_jobs},
                          {"newest", time(newest)},
                          {"oldest", time(oldest)}});
  }
};

Result<PruneTotals> prune_all(const PruneOptions& options, const Terminal& terminal,
                              PruneTotals& sum) {
  AE_ASSIGN(const std::vector<Member> params, parse_prune_params(options));
  AE_ASSIGN(const app::StoreUrl store, store_of(options));
  AE_ASSIGN(const auto client, app::ApiClient::open(store, app::OpenMode::write));
  ProgressLine line(terminal);
  for (Value after;;) {
    std::vector<Member> members = params;
    if (!after.is_null()) members.emplace_back("after", after);
    api::ApiRequest request;
    request.method = "POST";
    request.path = {"api", "prune"};
    request.body = canonical(Value::object(std::move(members)));
    request.by = cli_actor();
    AE_ASSIGN(const api::ApiResponse response, client->send(request));
    if (response.status >= 400) {
      return std::unexpected(api::error_of_problem(response.body, response.status));
    }
    sum.add(response.body);
    line.show(
        fmt::format("{} {}", counted(sum.jobs, "job"), options.dry_run ? "found" : "deleted"));
    if (response.body["more"] != Value(true)) return sum;
    after = response.body["next"];
  }
}

int prune_command(const PruneOptions& options, Terminal& terminal) {
  PruneTotals sum;
  const auto done = prune_all(options, terminal, sum);
  if (!done) {
    if (sum.jobs > 0) {
      terminal.note(fmt::format("{} {} deleted before the failure:", counted(sum.jobs, "job"),
                                sum.jobs == 1 ? "was" : "were"));
    }
    return terminal.fail_with(done.error());
  }
  if (terminal.json()) {
    terminal.print_json(sum.json(options.dry_run));
  } else {
    const std::string ended =
        sum.oldest.empty() ? ""
                           : fmt::format(": ended {} to {}", safe(sum.oldest), safe(sum.newest));
    terminal.print(fmt::format("{}, {} {}{}\n", counted(sum.jobs, "job"),
                               counted(sum.events, "event"),
                               options.dry_run ? "would be deleted" : "deleted", ended));
  }
  for (std::size_t i = 0; i < sum.left.size() && i < kLeftShown; ++i) {
    terminal.warn(fmt::format("job {} was kept; its log cannot be archived: {}",
                              safe(sum.left[i].text("id")), safe(sum.left[i].text("message"))));
  }
  if (sum.left_jobs > kLeftShown) {
    const std::uint64_t more = sum.left_jobs - kLeftShown;
    terminal.warn(fmt::format("{} more {} {} kept for such reasons", more, noun_of(more, "job"),
                              more == 1 ? "was" : "were"));
  }
  return sum.left_jobs > 0 ? kUnverified : kDone;
}

}  // namespace

extern const Command kPruneCommand{
    .name = "prune",
    .group = Group::maintain,
    .target = Target::store_or_server,
    .summary = "delete ended jobs and all their data, and free their ids and idempotency keys",
    .example = "aetheris prune --older-than 90d --archive /archive/aetheris",
    .bind = bound_command<PruneOptions, prune_options, prune_command>};

}  // namespace ae::cli
