// Jobs as MCP results: follow a job until it ends or is blocked on a user, and describe it.
#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "api/mcp.h"
#include "api/mcp_call.h"
#include "api/problem.h"
#include "base/escape_hidden.h"
#include "base/ids.h"
#include "base/utf8.h"
#include "inspect/aliases.h"
#include "inspect/request_kind.h"
#include "json/json.h"
#include "log/field_names.h"
#include "store/rules.h"

namespace ae::api {
namespace {

using engine::RequestKind;

// The duration of one long poll, and pauses between reads of a job that progresses fast.
constexpr Duration kPollWait = std::chrono::seconds(15);
constexpr Duration kPause = std::chrono::milliseconds(50);
constexpr Duration kPauseSilent = std::chrono::seconds(1);
constexpr std::string_view kJobMeta = "aetheris/job";
constexpr std::size_t kShownMax =
    4'000;  // bytes of a call's arguments, or of a question, in a text

Value content(std::string text) {
  return Value::array({Value::object({{"text", std::move(text)}, {"type", "text"}})});
}

std::string progress_text(const Value& job) {
  const Value& progress = job["progress"];
  if (!progress["nodes"].is_integer() || !progress["done"].is_integer()) return {};
  return fmt::format("{} of {} steps done", progress["done"].as_int(), progress["nodes"].as_int());
}

// The limits that the next call exceeds, of a job that is parked for its budget.
std::span<const Value> shortfall_of(const Value& job) {
  const Value& budget = job[field::budget];
  return budget.is_object() ? items_of(budget[engine::plain_name::kShortfall])
                            : std::span<const Value>();
}

// A tool requests a form.
bool is_form(const Value& wait) { return wait["question"].text("mode") == "form"; }

// A job without a result, as a value for the caller.
Value job_summary(const Value& job) {
  std::vector<Member> members{{"job_id", job["id"]}, {"status", job["status"]}};
  for (const char* name :
       {field::error, "parked", "progress", field::waits, field::in_doubt, "needs_version"}) {
    const Value& value = job[name];
    if (!value.is_null() && !(value.is_array() && value.size() == 0)) {
      members.emplace_back(name, value);
    }
  }
  if (items_of(job[field::waits]).size() > 0) {
    std::vector<Value> waits;
    for (const Value& wait : items_of(job[field::waits])) {
      waits.push_back(is_form(wait) ? wait.with("answer", "data") : wait);
    }
    std::ranges::find(members, field::waits, &Member::first)->second =
        Value::array(std::move(waits));
  }
  if (shortfall_of(job).size() > 0) members.emplace_back(field::budget, job[field::budget]);
  return Value::object(std::move(members));
}

std::string clip_text(std::string text) {
  if (text.size() <= kShownMax) return text;
  return fmt::format("{}… (cut)", truncate_utf8(text, kShownMax));
}

// A question to a user as text that a client can pass on: the call with its arguments, or the
// question.
std::string question_text(const Value& request) {
  std::string text = fmt::format("- a decision ({})", request.text(field::node_id));
  const std::string_view tool = request.text("tool");
  const Value& detail = request[field::detail];
  const Value& question = detail["question"];
  if (question.is_object() && tool.empty()) {
    text +=
        fmt::format(", key {}: {}", escape_hidden_json(canonical(detail[field::correlation_key])),
                    clip_text(escape_hidden_json(canonical(question["message"]))));
    if (!question["data"].is_null())
      text += fmt::format(", about {}", clip_text(escape_hidden_json(canonical(question["data"]))));
  } else if (question.is_object()) {
    // Quoted: the text of a server must not pass as a line of ours.
    text += fmt::format(", requested by the call of tool \"{}\": {}", tool,
                        clip_text(escape_hidden_json(canonical(question["message"]))));
    if (question["url"].is_string())
      text += fmt::format(", at {}", escape_hidden_json(canonical(question["url"])));
  } else if (!tool.empty()) {
    text += fmt::format(" on the call of tool \"{}\" with {}", tool,
                        clip_text(escape_hidden_json(canonical(detail[field::arguments]))));
  } else {
    text += fmt::format(", key {}", escape_hidden_json(canonical(detail[field::correlation_key])));
  }
  if (request[field::reason].is_string() && !question.is_object()) {
    text += fmt::format(", reason: {}", escape_hidden(request.text(field::reason)));
  }
  if (request[field::expires_at].is_string())
    text += fmt::format(", until {}", request.text(field::expires_at));
  text += fmt::format(
      ": with the decision, call aetheris_answer {{\"job_id\": \"{}\", \"approval_id\": {}, ",
      request.text("job_id"), canonical(request["id"]));
  if (is_form(detail)) {
    return fmt::format(
        "{}\"payload\": …}}, with a payload that matches this schema: {}; or \"decision\": "
        "\"reject\" instead",
        text, clip_text(escape_hidden_json(canonical(question["schema"]))));
  }
  const bool data = detail.text("answer") == "data";
  return text + (data ? "\"payload\": …}" : "\"decision\": \"approve\" or \"reject\"}");
}

// A wait that is no open request to an operator: for a signal, a message or a time; or expired.
std::string wait_text(const Value& job, const Value& wait) {
  const std::string_view type = wait.text(field::wait_type);
  if (wait["expired"] == Value(true)) {
    return fmt::format(
        "- nothing: its wait ({}) expired at {}, and it resumes when a process runs it",
        wait.text(field::node_id), wait.text(field::expires_at));
  }
  if (type == "timer") return fmt::format("- the time {}", wait.text(field::due_at));
  if (type == "message") {
    return fmt::format("- a message on channel {}: {}", canonical(wait[field::channel]),
                       wait.text("command"));
  }
  return fmt::format(
      "- a signal: aetheris_signal {{\"job_id\": \"{}\", \"key\": {}, \"payload\": …}}",
      job.text("id"), canonical(wait[field::correlation_key]));
}

bool is_unknown_outcome(const Value& request) {
  return request.text(field::kind) == to_text(RequestKind::unknown_outcome);
}

}  // namespace

std::optional<std::string> job_of(const Value& value) {
  if (!value.is_string()) return std::nullopt;
  auto job = job_id_from_text(value.as_string());
  if (!job) return std::nullopt;
  return std::move(job->text);
}

std::string in_milliseconds(Duration time) {
  const auto count = std::chrono::ceil<std::chrono::milliseconds>(time).count();
  return fmt::format("{}ms", std::max<std::int64_t>(1, count));
}

std::span<const Value> items_of(const Value& list) {
  return list.is_array() ? list.items() : std::span<const Value>();
}

bool is_idle(const Value& job) {
  const std::string_view status = job.text("status");
  if (store::has_ended(status) || status == "parked") return true;
  if (status != "waiting") return false;
  // A job that waits only for timers continues by itself.
  return std::ranges::any_of(
             items_of(job[field::waits]),
             [](const Value& wait) { return wait.text(field::wait_type) != "timer"; }) ||
         std::ranges::any_of(items_of(job["requests"]), is_unknown_outcome);
}

std::string request_text(const Value& request) {
  const std::string_view kind = request.text(field::kind);
  std::string text;
  if (is_unknown_outcome(request)) {
    text =
        fmt::format("- a decision whether the call of tool \"{}\" happened:", request.text("tool"));
  } else if (kind == to_text(RequestKind::confirmation)) {
    text = fmt::format("- a decision about changed resources ({}):", request.text(field::node_id));
  } else if (kind == to_text(RequestKind::budget)) {
    text = fmt::format("- a higher limit of {}:", request[field::detail].text("limit"));
  } else {
    return question_text(request);
  }
  for (const Value& command : items_of(request[field::commands]))
    text += fmt::format("\n  {}", command.as_string());
  return text;
}

std::string waits_text(const Value& job) {
  std::string text;
  const auto requests = items_of(job["requests"]);
  const auto add = [&text](const std::string& line) { text += fmt::format("\n{}", line); };
  // What the job is parked for has its own line.
  const auto has_own_line = [](const Value& request) {
    const std::string_view kind = request.text(field::kind);
    return kind == to_text(RequestKind::confirmation) || kind == to_text(RequestKind::budget);
  };
  for (const Value& request : requests) {
    if (!is_unknown_outcome(request) && !has_own_line(request)) add(request_text(request));
  }
  for (const Value& wait : items_of(job[field::waits])) {
    const bool is_request = wait[field::approval_id].is_string() && wait["expired"] != Value(true);
    if (!is_request) add(wait_text(job, wait));
  }
  for (const Value& request : requests) {
    if (is_unknown_outcome(request)) add(request_text(request));
  }
  const Value& parked = job["parked"];
  if (parked.is_object()) {
    text += fmt::format("\n- parked: {}", parked.text(field::reason));
    std::string limits;
    for (const Value& one : shortfall_of(job))
      limits.append(limits.empty() ? ", the next call exceeds " : ", ").append(one.text("limit"));
    text += limits;
    if (parked["command"].is_string() && std::ranges::none_of(requests, is_unknown_outcome)) {
      text += fmt::format("; {}", parked["command"].as_string());
    }
  }
  for (const Value& doubt : items_of(job[field::in_doubt])) {
    if (items_of(doubt[field::commands]).size() > 0) continue;
    text += fmt::format(
        "\nIt does not wait for the call of tool \"{}\": the call was given up, and its outcome is "
        "unknown.",
        doubt.text("tool"));
  }
  return text;
}

// ---------------------------------------------------------------- results

Value tool_result(mcp::Revision revision, std::string text, const Value& structured, bool failed,
                  const std::string& job) {
  std::vector<Member> members{{"content", content(std::move(text))}, {"isError", failed}};
  if (revision >= mcp::Revision::r2025_06_18 && !structured.is_null()) {
    // Modern revisions accept any value; older ones only an object.
    const bool fits = structured.is_object() || mcp::is_modern(revision);
    members.emplace_back("structuredContent",
                         fits ? structured : Value::object({{field::result, structured}}));
  }
  if (!job.empty()) {
    members.emplace_back("_meta", Value::object({{std::string(kJobMeta), job}}));
  }
  return Value::object(std::move(members));
}

Value tool_error(mcp::Revision revision, const Value& problem) {
  const std::string code(problem.text(field::code));
  return tool_result(revision, fmt::format("{}: {}", code, problem.text(field::detail)),
                     Value::object({{field::code, code}, {"message", problem[field::detail]}}),
                     true);
}

Value job_result(mcp::Revision revision, const Value& job) {
  const std::string id(job.text("id"));
  const std::string_view status = job.text("status");
  if (status == "completed") {
    const Value& result = job[field::result];
    return tool_result(revision, result.is_string() ? result.as_string() : pretty(result), result,
                       false, id);
  }
  if (store::has_ended(status)) {
    const Value& error = job[field::error];
    return tool_result(
        revision,
        fmt::format("The job {} {}. {}: {}", id, status == "failed" ? "failed" : "was cancelled",
                    error.text(field::code), error.text("message")),
        job_summary(job), true, id);
  }
  std::string text;
  if (is_idle(job)) {
    text = fmt::format("The job {} is blocked. It waits for:{}", id, waits_text(job));
  } else {
    const std::string far = progress_text(job);
    text = fmt::format(
        "The job {0} is {1}{2}{3}. It continues in the background; aetheris_job {{\"job_id\": "
        "\"{0}\", \"wait_seconds\": 45}} waits for it.",
        id, status, far.empty() ? "" : ", ", far);
  }
  return tool_result(revision, std::move(text), job_summary(job), false, id);
}

// ---------------------------------------------------------------- following

void Mcp::follow(const CallPtr& call, const Value& job, WithJob then) {
  const Duration now = steady_.since_start();
  const Value& done = job["progress"]["done"];
  if (!call->progress_token.is_null() && call->caller.on_notification && done.is_number() &&
      done.as_number() > call->reported_progress) {
    call->reported_progress = done.as_number();
    std::vector<Member> members{{"progress", done},
                                {"progressToken", call->progress_token},
                                {"total", job["progress"]["nodes"]}};
    if (call->revision >= mcp::Revision::r2025_03_26) {
      members.emplace_back("message",
                           fmt::format("{}, {}", job.text("status"), progress_text(job)));
    }
    call->caller.on_notification(
        mcp::notification("notifications/progress", Value::object(std::move(members))));
  }
  if (is_idle(job) || now >= call->until || shutting_down_ || call->is_disconnected())
    return then(job);
  call->drop_params();
  call->last_read_at = now;
  const std::string id(job.text("id"));
  const Duration wait = std::min(kPollWait, call->until - now);
  call_route(
      call, "GET", {"api", "jobs", id, "events"},
      {{"after", std::to_string(job["seq"].as_int())},
       {"limit", "1"},
       {"wait", in_milliseconds(wait)}},
      {}, [this, call, id, job, then = std::move(then)](const ApiResponse& response) mutable {
        // No log is read for a client that has disconnected.
        if (response.status != 200 && call->is_disconnected()) return then(job);
        if (response.status != 200) return call->refuse(response);
        const bool silent = response.body["events"].size() == 0;
        if (silent && call->caller.on_notification && !call->progress_token.is_null())
          call->caller.on_notification({});
        const Duration pause = silent ? kPauseSilent : kPause;
        const Duration early = call->last_read_at + pause - steady_.since_start();
        if (early <= Duration(0) || shutting_down_) return reread_job(call, id, std::move(then));
        loop_.after(std::min(early, std::max(Duration(0), call->until - steady_.since_start())),
                    [this, alive = alive_.watch(), call, id, then = std::move(then)]() mutable {
                      if (alive) reread_job(call, id, std::move(then));
                    });
      });
}

void Mcp::reread_job(const CallPtr& call, const std::string& job, WithJob then) {
  call_route(call, "GET", {"api", "jobs", job}, {}, {},
             [this, call, then = std::move(then)](const ApiResponse& response) mutable {
               if (response.status != 200) return call->refuse(response);
               follow(call, response.body, std::move(then));
             });
}

}  // namespace ae::api
