// approvals, jobs, job, events, trace, replay, verify: read-only commands.
#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "api/problem.h"
#include "app/api_client.h"
#include "app/key_file.h"
#include "base/time.h"
#include "cli/shared.h"
#include "cli/follow_retry.h"
#include "cli/phrases.h"
#include "cli/trace_text.h"
#include "json/json.h"
#include "plan/budget.h"

namespace ae::cli {
namespace {

constexpr const char* kFollowWait = "10s";
constexpr std::size_t kListedDefault = 100;  // same as the server's

Result<Value> get(app::ApiClient& client, api::Path path, api::QueryPairs query) {
  std::erase_if(query, [](const auto& pair) { return pair.second.empty(); });
  api::ApiRequest request;
  request.path = std::move(path);
  request.query = std::move(query);
  AE_ASSIGN(api::ApiResponse response, client.send(request));
  if (response.status >= 400) {
    return std::unexpected(
        with_option_names(api::error_of_problem(response.body, response.status)));
  }
  return std::move(response.body);
}

// Opens an existing store. If there is none, the job is reported as not found.
Result<std::unique_ptr<app::ApiClient>> open(const app::StoreUrl& store, const std::string& id) {
  auto client = app::ApiClient::open(store, app::OpenMode::read);
  if (!client && client.error().code == Code::not_found && !id.empty()) {
    return fail(Code::not_found, "there is no job " + id + ": " + client.error().message);
  }
  return client;
}

Result<Value> get_job_view(const Options& options, const std::string& what,
                           api::QueryPairs query = {}) {
  AE_ASSIGN(const app::StoreUrl store, store_of(options));
  AE_ASSIGN(const auto client, open(store, options.id));
  api::Path path{"api", "jobs", options.id};
  if (!what.empty()) path.push_back(what);
  return get(*client, std::move(path), std::move(query));
}

bool is_terminal_event(std::string_view type) {
  return type == "job_completed" || type == "job_failed" || type == "job_cancelled";
}

std::string labels_text(const Value& labels) {
  std::string text;
  if (!labels.is_object()) return text;
  for (const auto& [name, value] : labels.members()) {
    text += (text.empty() ? "" : " ") + name + "=" +
            (value.is_string() ? value.as_string() : canonical(value));
  }
  return text;
}

// A server may return a short page although there are more items: requests more until it is full.
Result<Value> full_page(app::ApiClient& client, const api::Path& path, api::QueryPairs query,
                        const std::string& list, const std::string& limit) {
  std::size_t wanted = kListedDefault;
  std::from_chars(limit.data(), limit.data() + limit.size(), wanted);
  AE_ASSIGN(Value page, get(client, path, query));
  std::vector<Value> all(page[list].items().begin(), page[list].items().end());
  while (page["next_cursor"].is_string() && all.size() < wanted) {
    std::erase_if(query,
                  [](const auto& pair) { return pair.first == "cursor" || pair.first == "limit"; });
    query.emplace_back("cursor", page["next_cursor"].as_string());
    query.emplace_back("limit", std::to_string(wanted - all.size()));
    AE_ASSIGN(page, get(client, path, query));
    all.insert(all.end(), page[list].items().begin(), page[list].items().end());
  }
  return page.with(list, Value::array(std::move(all)));
}

}  // namespace

// ---------------------------------------------------------------- approvals

namespace {

// Indented JSON over several lines, safe on a terminal (safe_json).
std::string indented_json(const Value& value) {
  std::string text = safe_json(pretty(value));
  while (text.ends_with('\n')) text.pop_back();
  for (std::size_t at = 0; (at = text.find('\n', at)) != text.npos; at += 3) {
    text.replace(at, 1, "\n  ");
  }
  return text;
}

// The request that would be sent, as prepared by the tool.
std::string sends_text(const Value& sends) {
  std::string text;
  const auto line = [&](const char* what, const std::string& value) {
    text.append("  ").append(what).append(value).append("\n");
  };
  if (sends["error"].is_string()) line("not sendable: ", safe(sends.text("error")));
  if (sends["url"].is_string()) {
    line("sends:     ", safe(sends.text("method")) + " " + safe(sends.text("url")));
  }
  if (sends["headers"].is_object()) {
    for (const auto& [name, value] : sends["headers"].members()) {
      line("           ", safe(name) + ": " + safe(value.is_string() ? value.as_string() : ""));
    }
  }
  if (sends["argv"].is_array()) line("runs:      ", safe_json(canonical(sends["argv"])));
  if (sends["stdin"].is_string()) line("           stdin ", safe(sends.text("stdin")));
  if (sends["env"].is_object()) line("           env ", safe_json(canonical(sends["env"])));
  if (sends["cwd"].is_string()) line("           in ", safe(sends.text("cwd")));
  if (sends["server"].is_string()) {
    line("sends:     ", "tools/call " + safe(sends.text("tool")) + " to the MCP server " +
                            safe(sends.text("server")));
  }
  return text;
}

// The details of a call to approve: the exact arguments and the reason.
std::string call_text(const Value& approval) {
  std::string text;
  if (approval["reason"].is_string())
    text += "  reason:    " + safe(approval.text("reason")) + "\n";
  if (approval["labels"].is_object() && approval["labels"].size() > 0) {
    text += "  job:       " + safe_json(canonical(approval["labels"])) + "\n";
  }
  text += "  arguments: " + indented_json(approval["arguments"]) + "\n";
  text += "  args hash: " + safe(approval.text("arguments_hash")) + "\n";
  return text + sends_text(approval["sends"]);
}

// The question of a tool during its call. Its text comes from the server.
std::string question_text(const Value& approval) {
  const Value& question = approval["question"];
  std::string text = "  question:  " + safe(question.text("message")) + "\n";
  if (question["url"].is_string()) text += "  address:   " + safe(question.text("url")) + "\n";
  if (question["schema"].is_object())
    text += "  answer:    " + indented_json(question["schema"]) + "\n";
  return text;
}

}  // namespace

std::string approval_text(const Value& approval) {
  const std::string id = safe(approval.text("id"));
  std::string what = "node " + place_text(approval) + " of job " + safe(approval.text("job_id"));
  const bool call = approval.text("kind") == "call";
  const bool question = approval.text("kind") == "question";
  if (call) {
    what += " waits for approval of the " + call_of(approval.text("tool"));
  } else if (question) {
    what += ": the " + call_of(approval.text("tool")) + " asks a question";
  } else if (approval.text("kind") == "confirmation") {
    what += " needs a decision on" + resources_text(approval["resources"]);
  } else {
    what += approval.text("answer") == "data" ? " asks for data (" : " asks (";
    what += safe(approval.text("correlation_key")) + ")";
  }
  std::string text = id;
  text.append("\n  ").append(what).append("\n");
  if (approval["expires_at"].is_string()) {
    text += "  expires:   " + short_time(approval.text("expires_at")) + "\n";
  }
  if (call) text += call_text(approval);
  if (question) text += question_text(approval);
  return text;
}

int approvals_command(const Options& options, Terminal& terminal) {
  const auto store = store_of(options);
  if (!store) return terminal.fail_with(store.error());
  auto page = [&]() -> Result<Value> {
    auto client = open(*store, {});
    if (!client) return std::unexpected(client.error());
    return full_page(**client, {"api", "approvals"},
                     {{"limit", options.limit}, {"cursor", options.cursor}}, "approvals",
                     options.limit);
  }();
  if (!page) return terminal.fail_with(page.error());
  if (terminal.json()) {
    terminal.print_json(*page);
    return kDone;
  }
  if ((*page)["approvals"].size() == 0) terminal.note("no pending approvals");
  for (const Value& approval : (*page)["approvals"].items()) {
    const std::string id = safe(approval.text("id"));
    const bool form =
        approval.text("kind") == "question" && approval["question"].text("mode") == "form";
    std::string text = approval_text(approval);
    for (const std::string_view answer : {"approve ", "reject "}) {
      const bool fills_in = form && answer == "approve ";
      text.append("  aetheris ").append(answer).append(id).append(store_flag(*store));
      text.append(fills_in ? " --arguments '{…}'\n" : "\n");
    }
    terminal.print(text);
  }
  if ((*page)["next_cursor"].is_string()) {
    terminal.note("more: --cursor " + safe((*page)["next_cursor"].as_string()));
  }
  return kDone;
}

// ---------------------------------------------------------------- jobs, job

namespace {

// Why the job is stalled, and the commands that help. One line each, below its row.
std::string stuck_text(const Value& job, const std::string& flag, std::size_t columns) {
  std::string text;
  const auto commands = [&](const Value& list, const AnswerTo& to) {
    if (!list.is_array()) return;
    for (const Value& command : list.items()) {
      if (!command.is_string()) continue;
      text += "    " + safe(command.as_string()) + flag + "\n";
      const std::string note = answer_note(command.as_string(), to);
      if (!note.empty()) text += "        (" + note + ")\n";
    }
  };
  if (const Value& stuck = job["stuck"]; stuck.is_object()) {
    const bool parked = stuck.text("reason") == "parked";
    const std::string_view message = stuck.text("message");
    const std::string since = " since " + short_time(stuck.text("since"));
    text += "  ";
    if (parked) {
      text += "parked" + since + ": " + parked_text(Value::object({{"reason", message}})) + "\n";
    } else {
      text += safe(stuck.text("reason")) + ": " + safe(message) + "," + since + "\n";
    }
    const bool confirms = stuck["commands"].is_array() &&
                          std::ranges::any_of(stuck["commands"].items(), [](const Value& one) {
                            return one.is_string() && one.as_string().ends_with(" accept");
                          });
    commands(stuck["commands"], {.confirms = confirms});
  }
  if (!job["in_doubt"].is_array()) return text;
  const std::string_view status = job.text("status");
  const bool ended = status == "completed" || status == "failed" || status == "cancelled";
  for (const Value& doubt : job["in_doubt"].items()) {
    text += "  node " + place_text(doubt) + ": " + unknown_outcome_text(doubt) + ", since " +
            short_time(doubt.text("since")) + "\n";
    for (const std::string& line : call_lines(doubt, columns)) text += "    " + line + "\n";
    if (doubt["given_up"] == Value(true)) {
      text += "    given up: no longer waited for\n";
    }
    if (const std::string noted = noted_text(doubt); !noted.empty()) text += "    " + noted + "\n";
    commands(doubt["commands"], {.doubt = doubt, .ended = ended});
  }
  return text;
}

// The head of a list of jobs, and a row with details for each.
std::string stuck_list(const Value& jobs, const std::string& flag, const Paint& paint,
                       std::size_t columns) {
  Table table({"ID", "STATUS", "AGENT"});
  for (const Value& job : jobs.items()) {
    const std::string status(job.text("status"));
    table.row({{std::string(job.text("id"))},
               {status, status_tint(status)},
               {std::string(job.text("agent"))}});
  }
  const std::string rows = table.text(paint, 0);
  std::size_t at = rows.find('\n') + 1;
  std::string text = rows.substr(0, at);
  for (const Value& job : jobs.items()) {
    const std::size_t end = rows.find('\n', at) + 1;
    text += rows.substr(at, end - at) + stuck_text(job, flag, columns);
    at = end;
  }
  return text;
}

}  // namespace

namespace {

constexpr std::size_t kReasonsRead = 20;  // jobs of a list whose state is read

// The time from creation to end, for a job that has ended.
std::string job_duration_text(const Value& job) {
  const std::string_view status = job.text("status");
  if (status != "completed" && status != "failed" && status != "cancelled") return "";
  const auto from = instant_from_text(job.text("created_at"));
  const auto to = instant_from_text(job.text("updated_at"));
  return from && to ? duration_shown(*to - *from) : "";
}

// Why a job failed or does not continue; "" if it needs no action.
std::string reason_of(const Value& job) {
  if (const Value& error = job["error"]; error.is_object()) {
    const std::string_view summary = error.text("summary");
    return safe(error.text("code")) + ": " +
           first_line(summary.empty() ? error.text("message") : summary);
  }
  if (job["parked"].is_object()) return park_reason(job["parked"], job["in_doubt"]);
  if (job["unattended"].is_object()) return first_line(job["unattended"].text("message"));
  return job["waits"].size() > 0 ? wait_sentence(job["waits"].items()[0]) : std::string();
}

// The reasons of the first jobs in a list that have one, by id; rows do not contain them.
std::map<std::string, std::string, std::less<>> reasons_of(const Value& jobs,
                                                           const Options& options) {
  // Jobs that need an operator are read first.
  constexpr std::pair<std::string_view, std::string_view> kRounds[] = {{"failed", "parked"},
                                                                       {"waiting", "queued"}};
  std::map<std::string, std::string, std::less<>> reasons;
  const auto store = store_of(options);
  std::unique_ptr<app::ApiClient> client;
  std::size_t read = 0;
  for (const auto& [one, other] : kRounds) {
    for (const Value& job : jobs.items()) {
      if (job.text("status") != one && job.text("status") != other) continue;
      if (read++ == kReasonsRead) return reasons;
      if (!client) {
        auto opened = store ? open(*store, {}) : std::unexpected(store.error());
        if (!opened) return reasons;
        client = *std::move(opened);
      }
      const std::string id(job.text("id"));
      const auto whole = get(*client, {"api", "jobs", id}, {});
      if (!whole) continue;
      if (std::string reason = reason_of(*whole); !reason.empty()) reasons[id] = std::move(reason);
    }
  }
  return reasons;
}

}  // namespace

int jobs_command(const Options& options, Terminal& terminal) {
  auto page = [&]() -> Result<Value> {
    AE_ASSIGN(const app::StoreUrl store, store_of(options));
    auto client = open(store, {});
    if (!client) return std::unexpected(client.error());
    api::QueryPairs query{{"status", options.status},
                          {"agent", options.agent},
                          {"limit", options.limit},
                          {"cursor", options.cursor}};
    for (const std::string& label : options.labels) {
      if (const std::size_t at = label.find_first_of(":="); at == 0 || at == label.npos) {
        return fail(Code::usage, "--label must be NAME=VALUE, not \"" + label.substr(0, 80) + "\"");
      }
      query.emplace_back("label", label);
    }
    if (options.stuck) {
      query.emplace_back("stuck", "true");
      query.emplace_back("older_than", options.older_than);
    }
    if (options.in_doubt) query.emplace_back("in_doubt", "true");
    if (!options.stuck && !options.in_doubt)
      return get(**client, {"api", "jobs"}, std::move(query));
    return full_page(**client, {"api", "jobs"}, std::move(query), "jobs", options.limit);
  }();
  if (!page) return terminal.fail_with(page.error());
  if (terminal.json()) {
    terminal.print_json(*page);
    return kDone;
  }
  if ((*page)["jobs"].size() == 0) {
    terminal.note(options.stuck      ? "no stuck jobs"
                  : options.in_doubt ? "no calls with an unknown outcome"
                                     : "no jobs");
    return kDone;
  }
  if (options.stuck || options.in_doubt) {
    const auto store = store_of(options);
    const std::string flag = store ? store_flag(*store) : "";
    terminal.print(
        stuck_list((*page)["jobs"], flag, terminal.out(), argument_columns(terminal, Stream::out)));
    if ((*page)["next_cursor"].is_string()) {
      terminal.note("more: --cursor " + safe((*page)["next_cursor"].as_string()));
    }
    return kDone;
  }
  const auto reasons = reasons_of((*page)["jobs"], options);
  std::vector<std::string> head{"ID", "STATUS", "AGENT", "CREATED", "DURATION", "LABELS"};
  if (!reasons.empty()) head.emplace_back("REASON");
  Table table(std::move(head));
  for (const Value& job : (*page)["jobs"].items()) {
    const std::string status(job.text("status"));
    const auto reason = reasons.find(job.text("id"));
    std::vector<Table::Cell> cells{
        {std::string(job.text("id"))},    {status, status_tint(status)},
        {std::string(job.text("agent"))}, {short_time(job.text("created_at"))},
        {job_duration_text(job)},         {labels_text(job["labels"])}};
    if (!reasons.empty()) {
      cells.push_back({reason == reasons.end() ? std::string() : reason->second,
                       status == "failed" ? Tint::bad : Tint::none});
    }
    table.row(std::move(cells));
  }
  terminal.print(table.text(terminal.out(), terminal.width()));
  if ((*page)["next_cursor"].is_string()) {
    terminal.note("more: --cursor " + safe((*page)["next_cursor"].as_string()));
  }
  return kDone;
}

namespace {

constexpr std::size_t kChangesShown = 10;

// The external changes of the job and their last verification, one line each; mismatches first.
std::vector<std::string> changes_text(const Value& changes) {
  std::vector<std::string> mismatches, matches;
  if (!changes.is_array()) return mismatches;
  for (const Value& change : changes.items()) {
    const std::string verdict(change.text("verdict"));
    std::string text = safe(change.text("resource_type")) + " " + safe(change.text("resource_id")) +
                       " (" + safe(change.text("operation")) + ")";
    if (!verdict.empty()) text += ": " + safe(verdict);
    (verdict.empty() || verdict == "match" ? matches : mismatches).push_back(std::move(text));
  }
  mismatches.insert(mismatches.end(), matches.begin(), matches.end());
  if (mismatches.size() > kChangesShown) {
    const std::string left = std::to_string(mismatches.size() - kChangesShown);
    mismatches.resize(kChangesShown);
    mismatches.push_back("… and " + left + " more: `aetheris job ID --json`");
  }
  return mismatches;
}

}  // namespace

namespace {

// The scheduling of a job, and the capabilities that it requires.
std::string line_text(const Value& job) {
  std::string text = "queue " + safe(job.text("queue"));
  if (job["priority"].is_integer()) {
    text += ", priority " + std::to_string(job["priority"].as_int());
  }
  if (!job["required_capabilities"].is_array()) return text;
  std::string needs;
  for (const Value& one : job["required_capabilities"].items()) {
    if (one.is_string()) needs += (needs.empty() ? ", needs " : " ") + safe(one.as_string());
  }
  return text + needs;
}

constexpr std::size_t kValueShown = 400;  // columns of an input or a result on a narrow terminal
constexpr std::size_t kNarrowest = 60;    // of a terminal that output is fitted to

// Used and reserved amounts against the limits.
std::string budget_text(const Value& budget) {
  std::string text;
  for (const engine::Limit limit : engine::kCountedLimits) {
    const bool cost = limit == engine::Limit::cost;
    const std::string name = cost ? "cost_micros" : std::string(to_text(limit));
    const auto shown = [&](const Value& amount) {
      const auto n = static_cast<std::uint64_t>(amount.is_integer() ? amount.as_int() : 0);
      return cost ? engine::cost_text(n) : std::to_string(n);
    };
    if (budget["limits"][name].is_null()) continue;
    text += (text.empty() ? "" : " · ") + std::string(to_text(limit)) + " " +
            shown(budget["spent"][name]) + " of " + shown(budget["limits"][name]);
    const Value& reserved = budget["reserved"][name];
    if (reserved.is_integer() && reserved.as_int() > 0)
      text += ", " + shown(reserved) + " reserved";
  }
  if (const auto until = budget.text("wall_until"); !until.empty()) {
    text += (text.empty() ? "" : " · ") + std::string("until ") + short_time(until);
  }
  return text;
}

}  // namespace

int job_command(const Options& options, Terminal& terminal) {
  const auto job = get_job_view(options, "");
  if (!job) return terminal.fail_with(job.error());
  const auto store = store_of(options);
  if (!store) return terminal.fail_with(store.error());
  if (terminal.json()) {
    terminal.print_json(with_store(*job, *store));
    return kDone;
  }
  const Paint& paint = terminal.out();
  const std::string status(job->text("status"));
  std::string text =
      paint(Tint::bold, job_head(*job)) + " · " + paint(status_tint(status), status) + "\n";
  const auto line = [&](const char* name, const std::string& value) {
    if (value.empty()) return;
    text += "  " + paint(Tint::dim, pad(name, 10)) + value + "\n";
  };
  const auto value_line = [&](const char* name, const Value& value) {
    if (value.is_null()) return;
    const std::string all = safe_json(canonical(value));
    if (terminal.width() == 0) return line(name, all);
    const bool narrow = terminal.width() > kNarrowest;
    const std::string shown = cut(all, narrow ? terminal.width() - 12 : kValueShown);
    if (shown == all) return line(name, all);
    const std::string how = " (cut: --json has it all)";
    line(name, narrow ? cut(all, terminal.width() - 12 - how.size()) + how : shown + how);
  };
  line("created", short_time(job->text("created_at")));
  line("updated", short_time(job->text("updated_at")));
  line("labels", safe(labels_text((*job)["labels"])));
  if (status == "queued") line("queue", line_text(*job));
  line("budget", budget_text((*job)["budget"]));
  value_line("input", (*job)["input"]);
  value_line("result", (*job)["result"]);
  if ((*job)["error"].is_object()) {
    const Value& error = (*job)["error"];
    const std::string_view summary = error.text("summary");
    line("error",
         paint(Tint::bad, safe(error.text("code"))) + ": " +
             message_text(summary.empty() ? error.text("message") : summary, std::string(12, ' ')));
    if (status == "failed") {
      line("details",
           "aetheris trace " + quoted(std::string(job->text("id"))) + store_flag(*store));
    }
    if (const std::string did = committed_text(error); !did.empty()) line("", did);
    if (status == "failed") {
      const FailedJobFile file{.store_flag = store_flag(*store),
                               .retry_chain = find_retries(*store, job->text("id"))};
      for (const NextCommand& next : next_commands(*job, file)) {
        line(next.name.c_str(), next.lead_matters ? next.lead + next.command : next.command);
      }
    }
  }
  for (const std::string& doubt :
       final_unknown_outcomes(*job, *store, argument_columns(terminal, Stream::out))) {
    line(doubt.starts_with(' ') ? "" : "unknown", doubt);
  }
  for (const std::string& change : changes_text((*job)["changes"])) line("changed", change);
  terminal.print(text);
  print_blocked(*job, *store, terminal, Stream::out);
  const bool elsewhere = (*job)["parked"].text("until") == "version";  // print_blocked printed that
  if ((status == "waiting" || status == "parked") && !elsewhere) {
    const std::string then = continuation_text(*job, *store);
    if (!then.empty()) terminal.print("then:   " + then + "\n");
  }
  return kDone;
}

// ---------------------------------------------------------------- events

namespace {

void print_event(const Value& event, Terminal& terminal) {
  if (terminal.json()) return terminal.print_json(event);
  const Paint& paint = terminal.out();
  const std::string seq = std::to_string(event["seq"].is_integer() ? event["seq"].as_int() : 0);
  std::string line = paint(Tint::dim, std::string(seq.size() < 5 ? 5 - seq.size() : 0, ' ') + seq +
                                          "  " + exact_time(event.text("created_at"))) +
                     "  " + pad(safe(event.text("type")), 24) + "  ";
  const std::string payload = safe_json(canonical(event["payload"]));
  line += terminal.width() > 70 ? cut(payload, terminal.width() - 59) : payload;
  terminal.print(line + "\n");
}

api::QueryPairs events_query(const Options& options, std::uint64_t after, const char* wait) {
  return {{"after", after > 0 ? std::to_string(after) : ""},
          {"class", options.event_class},
          {"type", options.event_type},
          {"limit", std::to_string(api::kEventsMax)},
          {"wait", wait}};
}

Result<std::uint64_t> after_of(const Options& options) {
  if (options.after.empty()) return 0;
  if (options.after.size() > 15 ||
      options.after.find_first_not_of("0123456789") != std::string::npos) {
    return fail(Code::usage, "--after must be the seq of an event");
  }
  return std::stoull(options.after);
}

// Follows a job's events and partial output.
class EventFollower {
 public:
  EventFollower(const Options& options, Terminal& terminal, std::uint64_t after)
      : options_(options),
        terminal_(terminal),
        after_(after),
        follow_retry_(FollowRetry::real_environment(
            [this](const std::string& text) { terminal_.warn(text); })) {}

  Status run(const app::StoreUrl& store) {
    AE_ASSIGN(auto client, open(store, options_.id));
    while (true) {
      if (!client) {
        // The owner ended: connects to its successor, or opens the store itself.
        auto opened = open(store, options_.id);
        if (!opened) {
          AE_TRY(follow_retry_.on_failure(opened.error()));
          continue;
        }
        client = *std::move(opened);
      }
      follow_retry_.wait_for_turn();
      auto has_events = client->is_remote() ? read_stream(*client) : read_page(*client);
      if (!has_events) {
        AE_TRY(follow_retry_.on_failure(has_events.error()));
        client.reset();
        continue;
      }
      if (is_over_ && has_failed_) print_failure(*client, store);
      if (is_over_ || !terminal_.flush()) return {};  // or the reader of our output is gone
      // If another process now owns the store, follow it: it notifies of events at once, and has
      // partial output.
      if (!client->is_remote()) {
        if (auto owner = app::find_owner(store)) client = std::move(owner);
      }
      if (*has_events) continue;
      // No new events: did the job end before, or is its last event filtered out?
      auto job = get(*client, {"api", "jobs", options_.id}, {});
      if (!job) {
        AE_TRY(follow_retry_.on_failure(job.error()));
        client.reset();
        continue;
      }
      follow_retry_.on_success();
      const std::string_view status = job->text("status");
      if (status == "completed" || status == "failed" || status == "cancelled") return {};
    }
  }

 private:
  void show(const Value& event) {
    print_event(event, terminal_);
    after_ = static_cast<std::uint64_t>(event["seq"].as_int());
    is_over_ = is_over_ || is_terminal_event(event.text("type"));
    has_failed_ = has_failed_ || event.text("type") == "job_failed";
  }

  // Prints where the job failed, which the event does not tell.
  void print_failure(app::ApiClient& client, const app::StoreUrl& store) {
    const auto job = get(client, {"api", "jobs", options_.id}, {});
    if (!job || !(*job)["error"].is_object()) return;
    terminal_.note("job " + safe(options_.id) + " " + terminal_.err()(Tint::bad, "failed") +
                   failure_text((*job)["error"]));
    terminal_.note(
        "Details: " +
        terminal_.err()(Tint::bold, "aetheris trace " + quoted(options_.id) + store_flag(store)));
  }

  // Reads a page of events. True: there were some.
  Result<bool> read_page(app::ApiClient& client) {
    AE_ASSIGN(const Value page, get(client, {"api", "jobs", options_.id, "events"},
                                    events_query(options_, after_, kFollowWait)));
    follow_retry_.on_success();
    for (const Value& event : page["events"].items()) show(event);
    return page["events"].size() > 0;
  }

  // Reads a stream to its end. A slow reader delays only itself.
  Result<bool> read_stream(app::ApiClient& client) {
    api::ApiRequest request;
    request.path = {"api", "jobs", options_.id, "events"};
    for (auto& [name, value] : events_query(options_, after_, "")) {
      if (!value.empty() && name != "limit") request.query.emplace_back(name, std::move(value));
    }
    AE_ASSIGN(const api::ApiResponse end,
              client.follow(request, [&](const app::ApiClient::LiveEvent& live) {
                follow_retry_.on_success();
                auto event =
                    parse_json(live.data, {.bytes_max = live.data.size(), .depth_max = 1000});
                if (event && live.name == "said") {
                  print_delta(*event);
                } else if (event && (*event)["seq"].is_integer()) {
                  show(*event);
                }
                return terminal_.flush();
              }));
    if (end.status >= 400) {
      return std::unexpected(with_option_names(api::error_of_problem(end.body, end.status)));
    }
    return false;
  }

  void print_delta(const Value& delta) {
    if (terminal_.json()) {
      // By default every line is an event; --said adds partial output.
      if (options_.partial_output) terminal_.print_json(Value::object({{"said", delta}}));
      return;
    }
    const std::string attempt = std::to_string(delta["try"].as_int());
    const std::string stream_name = std::string(delta.text("invocation_id")) + "/" + attempt;
    const auto offset = static_cast<std::size_t>(delta["offset"].as_int());
    const std::string_view text = delta.text("text");
    // A reconnected stream repeats partial output from its beginning.
    if (!printed_.contains(stream_name) && printed_.size() >= kPrintedMax) printed_.clear();
    std::size_t& printed = printed_[stream_name];
    const std::size_t known = printed > offset ? printed - offset : 0;
    if (known >= text.size()) return;
    printed = offset + text.size();
    terminal_.print_stream(
        {.stream_name = stream_name,
         .head = terminal_.out()(Tint::dim, "    “  " + safe(delta.text("node_id"))) + "  ",
         .text = safe(text.substr(known), true)},
        true);
  }

  static constexpr std::size_t kPrintedMax = 1'000;  // tries of calls
  const Options& options_;
  Terminal& terminal_;
  std::uint64_t after_;
  FollowRetry follow_retry_;
  bool is_over_ = false, has_failed_ = false;
  std::map<std::string, std::size_t> printed_;  // printed bytes of partial output, by call and try
};

Status follow(const Options& options, Terminal& terminal) {
  AE_ASSIGN(const app::StoreUrl store, store_of(options));
  AE_ASSIGN(const std::uint64_t after, after_of(options));
  return EventFollower(options, terminal, after).run(store);
}

}  // namespace

int events_command(const Options& options, Terminal& terminal) {
  if (options.follow) {
    if (auto followed = follow(options, terminal); !followed) {
      return terminal.fail_with(followed.error());
    }
    return kDone;
  }
  auto all = [&]() -> Result<std::vector<Value>> {
    AE_ASSIGN(const app::StoreUrl store, store_of(options));
    AE_ASSIGN(std::uint64_t after, after_of(options));
    AE_ASSIGN(const auto client, open(store, options.id));
    std::vector<Value> events;
    while (true) {
      AE_ASSIGN(const Value page, get(*client, {"api", "jobs", options.id, "events"},
                                      events_query(options, after, "")));
      for (const Value& event : page["events"].items()) events.push_back(event);
      if (!page["next"].is_integer()) return events;
      after = static_cast<std::uint64_t>(page["next"].as_int());
    }
  }();
  if (!all) return terminal.fail_with(all.error());
  if (terminal.json()) {
    terminal.print_json(
        Value::object({{"events", Value::array(std::move(*all))}, {"next", Value()}}));
    return kDone;
  }
  for (const Value& event : *all) print_event(event, terminal);
  return kDone;
}

// ---------------------------------------------------------------- trace, replay, verify

int trace_command(const Options& options, Terminal& terminal) {
  const auto trace = get_job_view(options, "trace");
  if (!trace) return terminal.fail_with(trace.error());
  if (terminal.json()) {
    terminal.print_json(*trace);
    return kDone;
  }
  const auto store = store_of(options);
  const bool failed = trace->text("status") == "failed";
  const RetryChain known = failed && store ? find_retries(*store, options.id) : RetryChain{};
  terminal.print(trace_text(*trace, {.paint = terminal.out(),
                                     .width = terminal.width(),
                                     .verbose = options.verbose,
                                     .store_flag = store ? store_flag(*store) : std::string(),
                                     .retry_chain = known}));
  return kDone;
}

namespace {

// A step's phase in words; --json has the stored one.
std::string_view phase_words(std::string_view phase) {
  constexpr std::pair<std::string_view, std::string_view> kWords[] = {
      {"blocked", "not started"},     {"calling", "running"},
      {"settled", "call ended"},      {"backoff", "waiting to retry"},
      {"redo", "to be sent again"},   {"in_doubt", "outcome unknown"},
      {"probing", "probe running"},   {"committed", "call succeeded"},
      {"asking", "needs approval"},   {"questioned", "needs an answer"},
      {"mapping", "running items"},   {"looping", "running turns"},
      {"recorded", "value recorded"}, {"refused", "given up"}};
  const auto* const found =
      std::ranges::find(kWords, phase, &std::pair<std::string_view, std::string_view>::first);
  return found == std::end(kWords) ? phase : found->second;
}

// A summary of the state at an event; --json has all of it.
std::string state_text(const Value& state, const Paint& paint) {
  std::string text = paint(Tint::bold, safe(state.text("id"))) + "  " + safe(state.text("agent")) +
                     "  " + paint(status_tint(state.text("status")), safe(state.text("status"))) +
                     "\n";
  const auto line = [&](const char* name, const Value& value) {
    if (value.is_null() || value == Value("") || (value.is_object() && value.members().empty())) {
      return;
    }
    text += "  " + paint(Tint::dim, pad(name, 12)) +
            (value.is_string() ? safe(value.as_string()) : safe_json(canonical(value))) + "\n";
  };
  const auto time = [&](const char* name, const Value& at) {
    if (at.is_string()) line(name, short_time(at.as_string()));
  };
  time("created", state["job"]["created_at"]);
  line("labels", labels_text(state["job"]["labels"]));
  line("event", state["at"]);
  time("updated", state["updated_at"]);
  for (const char* name : {"epoch", "input", "result"}) line(name, state[name]);
  if (const Value& error = state["error"]; error.is_object()) {
    text += "  " + paint(Tint::dim, pad("error", 12)) + safe(error.text("code")) + ": " +
            message_text(error.text("message"), std::string(14, ' ')) + "\n";
  }
  time("deadline", state["deadline"]);
  if (state["parked"]["reason"].is_string()) line("parked", state["parked"]["reason"]);
  for (std::size_t i = 0; i < state["waits"].size(); ++i) {
    line(i == 0 ? "waits" : "", wait_sentence(state["waits"].items()[i]));
  }
  if (state["steps"].is_array() && state["steps"].size() > 0) {
    Table table({"NODE", "STATE"});
    for (const Value& step : state["steps"].items()) {
      const std::string_view status = step["failure"].is_object() ? "failed"
                                      : step["skipped"] == Value(true)
                                          ? "skipped"
                                          : phase_words(step.text("phase"));
      table.row({{place_text(step)}, {std::string(status)}});
    }
    text += table.text(paint, 0);
  }
  return text + paint(Tint::dim, "all fields: --json") + "\n";
}

}  // namespace

int replay_command(const Options& options, Terminal& terminal) {
  const auto state = get_job_view(options, "replay", {{"at", options.at}});
  if (!state) return terminal.fail_with(state.error());
  if (terminal.json()) {
    terminal.print_json(*state);
  } else {
    terminal.print(state_text(*state, terminal.out()));
  }
  return kDone;
}

int verify_command(const Options& options, Terminal& terminal) {
  const auto proof = [&]() -> Result<Value> {
    std::vector<std::string> keys = options.keys;
    const char* own = std::getenv("AETHERIS_SIGNING_KEY");
    if (keys.empty() && own != nullptr && *own != '\0') keys.emplace_back(own);
    api::QueryPairs query;
    for (const std::string& text : keys) {
      AE_ASSIGN(const PublicKey key, app::read_public_key(text));
      query.emplace_back("key", key.hex());
    }
    return get_job_view(options, "verify", std::move(query));
  }();
  if (!proof) return terminal.fail_with(proof.error());
  const bool ok = (*proof)["ok"] == Value(true);
  if (terminal.json()) {
    terminal.print_json(*proof);
    return ok ? kDone : kUnverified;
  }
  const Paint& paint = terminal.out();
  std::string text = (ok ? paint(Tint::good, "verified") : paint(Tint::bad, "NOT verified")) +
                     "  job " + safe(options.id) + ", " +
                     head_text(proof->text("head"), (*proof)["signature"].is_object()) + "\n";
  if ((*proof)["proofs"].is_object()) {
    for (const auto& [name, result] : (*proof)["proofs"].members()) {
      const bool good = result["ok"] == Value(true);
      text += "  " + (good ? paint(Tint::good, "ok  ") : paint(Tint::bad, "BAD ")) +
              pad(safe(name), 18) + proof_text(result.text("detail")) + "\n";
    }
  }
  for (const Value& name : (*proof)["redacted"].items()) {
    text += "  redacted  event " + std::to_string(name["seq"].as_int()) + ", " +
            safe(name.text("field")) + "\n";
  }
  terminal.print(text);
  return ok ? kDone : kUnverified;
}

}  // namespace ae::cli
