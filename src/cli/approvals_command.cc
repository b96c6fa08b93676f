// approvals: lists open approvals and questions; requests: lists everything that an operator is
// asked for.
#include <fmt/core.h>

#include <ranges>
#include <string>
#include <string_view>
#include <vector>

#include "api/request_kinds.h"
#include "cli/job_reads.h"
#include "cli/phrases.h"
#include "cli/shared.h"
#include "inspect/request_kind.h"
#include "json/json.h"
#include "log/field_names.h"

namespace ae::cli {
namespace {

using engine::RequestKind;

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
    text += fmt::format("  {}{}\n", what, value);
  };
  if (sends[field::error].is_string()) line("not sendable: ", safe(sends.text(field::error)));
  if (sends["url"].is_string()) {
    line("sends:     ", fmt::format("{} {}", safe(sends.text("method")), safe(sends.text("url"))));
  }
  if (sends["headers"].is_object()) {
    for (const auto& [name, value] : sends["headers"].members()) {
      line("           ",
           fmt::format("{}: {}", safe(name), safe(value.is_string() ? value.as_string() : "")));
    }
  }
  if (sends["argv"].is_array()) line("runs:      ", safe_json(canonical(sends["argv"])));
  if (sends["stdin"].is_string()) line("           stdin ", safe(sends.text("stdin")));
  if (sends["env"].is_object()) line("           env ", safe_json(canonical(sends["env"])));
  if (sends["cwd"].is_string()) line("           in ", safe(sends.text("cwd")));
  if (sends["server"].is_string()) {
    line("sends:     ", fmt::format("tools/call {} to the MCP server {}", safe(sends.text("tool")),
                                    safe(sends.text("server"))));
  }
  return text;
}

// The details of a call to approve: the exact arguments and the reason.
std::string call_text(const Value& approval) {
  std::string text;
  if (approval[field::reason].is_string())
    text += fmt::format("  reason:    {}\n", safe(approval.text(field::reason)));
  if (approval[field::labels].is_object() && approval[field::labels].size() > 0) {
    text += fmt::format("  job:       {}\n", safe_json(canonical(approval[field::labels])));
  }
  text +=
      fmt::format("  arguments: {}\n  args hash: {}\n", indented_json(approval[field::arguments]),
                  safe(approval.text(field::arguments_hash)));
  return text + sends_text(approval["sends"]);
}

// The question of a tool during its call, or of code that waits for a person. The text of a tool
// comes from its server.
std::string question_text(const Value& approval) {
  const Value& question = approval["question"];
  std::string text = fmt::format("  question:  {}\n", safe(question.text("message")));
  if (question["url"].is_string())
    text += fmt::format("  address:   {}\n", safe(question.text("url")));
  if (question["schema"].is_object())
    text += fmt::format("  answer:    {}\n", indented_json(question["schema"]));
  if (const Value* data = question.find("data"); data != nullptr && !data->is_null())
    text += fmt::format("  data:      {}\n", indented_json(*data));
  return text;
}

}  // namespace

std::string approval_text(const Value& approval) {
  const bool call = approval.text(field::kind) == to_text(RequestKind::call);
  const bool question = approval.text(field::kind) == to_text(RequestKind::question);
  std::string what;
  if (call) {
    what = fmt::format(" waits for approval of the {}", call_of(approval.text("tool")));
  } else if (question) {
    what = fmt::format(": the {} asks a question", call_of(approval.text("tool")));
  } else if (approval.text(field::kind) == to_text(RequestKind::confirmation)) {
    what = fmt::format(" needs a decision on{}", resources_text(approval["resources"]));
  } else {
    what = fmt::format(" asks{} ({})", approval.text("answer") == "data" ? " for data" : "",
                       safe(approval.text(field::correlation_key)));
  }
  std::string text = fmt::format("{}\n  node {} of job {}{}\n", safe(approval.text("id")),
                                 place_text(approval), safe(approval.text("job_id")), what);
  if (approval[field::expires_at].is_string()) {
    text += fmt::format("  expires:   {}\n", short_time(approval.text(field::expires_at)));
  }
  if (call) text += call_text(approval);
  if (approval["question"].is_object()) text += question_text(approval);
  return text;
}

namespace {

struct ApprovalsOptions : CommonOptions {
  std::string limit, cursor;
};

std::vector<Option> approvals_options(ApprovalsOptions& o) {
  return {{"--limit", "N", &o.limit, "maximum number of entries (default 100)"},
          {"--cursor", "CURSOR", &o.cursor, "continue after this cursor"}};
}

int approvals_command(const ApprovalsOptions& options, Terminal& terminal) {
  const auto store = store_of(options);
  if (!store) return terminal.fail_with(store.error());
  auto page = [&]() -> Result<Value> {
    auto client = open_to_read(*store, {});
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
    const bool form = approval.text(field::kind) == to_text(RequestKind::question) &&
                      approval["question"].text("mode") == "form";
    terminal.print(approval_text(approval));
    terminal.print(fmt::format("  aetheris approve {0}{1}{2}\n  aetheris reject {0}{1}\n", id,
                               store_flag(*store), form ? " --arguments '{…}'" : ""));
  }
  if ((*page)["next_cursor"].is_string()) {
    terminal.note(fmt::format("more: --cursor {}", safe((*page)["next_cursor"].as_string())));
  }
  return kDone;
}

struct RequestsOptions : ApprovalsOptions {
  std::string kind, job;
};

std::vector<Option> requests_options(RequestsOptions& o) {
  std::vector<Option> options = approvals_options(o);
  options.push_back(
      {"--kind",
       "KIND",
       &o.kind,
       "call wait question confirmation unknown_outcome budget",
       {.words = words_of(api::kRequestKinds | std::views::transform(&api::NamedKind::name))}});
  options.push_back({"--job",
                     "ID",
                     &o.job,
                     "only the requests of this job",
                     {.excludes = {"--limit", "--cursor"}}});
  return options;
}

// Approvals in the words of their list; an unknown outcome and a budget in one line.
std::string request_text(const Value& request) {
  const std::string_view kind = request.text(field::kind);
  const Value& detail = request[field::detail];
  if (kind != to_text(RequestKind::unknown_outcome) && kind != to_text(RequestKind::budget))
    return approval_text(detail);
  const std::string id = safe(request.text("id")), job = safe(request.text("job_id"));
  if (kind == to_text(RequestKind::budget)) {
    return fmt::format("{}\n  job {}: its budget of {} is used up\n", id, job,
                       safe(detail.text("limit")));
  }
  return fmt::format("{}\n  node {} of job {}: the outcome of the {} is unknown: {}\n", id,
                     place_text(request), job, call_of(request.text("tool")),
                     safe(request.text(field::reason)));
}

int requests_command(const RequestsOptions& options, Terminal& terminal) {
  const auto store = store_of(options);
  if (!store) return terminal.fail_with(store.error());
  auto page = [&]() -> Result<Value> {
    auto client = open_to_read(*store, {});
    if (!client) return std::unexpected(client.error());
    api::QueryPairs query{
        {field::kind, options.kind}, {"limit", options.limit}, {"cursor", options.cursor}};
    if (!options.job.empty()) query = {{field::kind, options.kind}, {"job", options.job}};
    return full_page(**client, {"api", "requests"}, std::move(query), "requests", options.limit);
  }();
  if (!page) return terminal.fail_with(page.error());
  if (terminal.json()) {
    terminal.print_json(*page);
    return kDone;
  }
  if ((*page)["requests"].size() == 0) terminal.note("no open requests");
  for (const Value& request : (*page)["requests"].items()) {
    std::string text = request_text(request);
    for (const Value& command : request[field::commands].items()) {
      text += fmt::format("  {}{}\n", safe(command.as_string()), store_flag(*store));
    }
    terminal.print(text);
  }
  if ((*page)["next_cursor"].is_string()) {
    terminal.note(fmt::format("more: --cursor {}", safe((*page)["next_cursor"].as_string())));
  }
  return kDone;
}

}  // namespace

extern const Command kApprovalsCommand{
    .name = "approvals",
    .group = Group::respond,
    .target = Target::store_or_server,
    .summary = "list pending approvals and questions",
    .example = "aetheris approvals",
    .bind = bound_command<ApprovalsOptions, approvals_options, approvals_command>};

extern const Command kRequestsCommand{
    .name = "requests",
    .group = Group::respond,
    .target = Target::store_or_server,
    .summary = "list everything that an operator is asked for",
    .example = "aetheris requests --kind unknown_outcome",
    .bind = bound_command<RequestsOptions, requests_options, requests_command>};

}  // namespace ae::cli
