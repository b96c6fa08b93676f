// MCP tasks: jobs in the form of the extension and of revision 2025-11-25; and elicitation, the
// questions to users.
//
// A job may wait without limit and is kept until it is pruned, so a task has no TTL.
#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "api/mcp.h"
#include "api/mcp_call.h"
#include "api/problem.h"
#include "inspect/request_kind.h"
#include "json/json.h"
#include "log/field_names.h"
#include "store/rules.h"

namespace ae::api {
namespace {

using engine::RequestKind;

constexpr int kPollEvery = 1'000;                 // milliseconds, as recommended to clients
constexpr std::size_t kQuestionShownMax = 2'000;  // bytes of arguments in a question

// `has_questions`: the job has questions that this client can put to its user.
std::string_view task_status(const Value& job, bool modern, bool has_questions) {
  const std::string_view status = job.text("status");
  if (status == "cancelled") return "cancelled";
  if (status == "completed") return "completed";
  // The extension reserves "failed" for protocol errors.
  if (status == "failed") return modern ? "completed" : "failed";
  return has_questions ? "input_required" : "working";
}

Value task_of(const Value& job, bool modern, bool has_questions) {
  std::vector<Member> members{{"createdAt", job["created_at"]},
                              {"lastUpdatedAt", job["updated_at"]},
                              {"status", task_status(job, modern, has_questions)},
                              {"taskId", job["id"]},
                              {modern ? "ttlMs" : "ttl", Value()},
                              {modern ? "pollIntervalMs" : "pollInterval", kPollEvery}};
  std::string message(job.text("status"));
  if (job[field::error].is_object()) {
    message += fmt::format(": {}: {}", job[field::error].text(field::code),
                           job[field::error].text("message"));
  } else if (is_idle(job) && !store::has_ended(job.text("status"))) {
    message += fmt::format(" for:{}", waits_text(job));
  }
  members.emplace_back("statusMessage", std::move(message));
  return Value::object(std::move(members));
}

// The form of a tool: passed on unchanged.
bool is_form_approval(const Value& approval) {
  return approval.text(field::kind) == to_text(RequestKind::question) &&
         approval["question"].text("mode") == "form";
}

bool is_decision(const Value& approval) { return approval.text("answer") != "data"; }

// The correlation key of the wait: unique within a job.
std::string_view wait_key(const Value& approval) { return approval.text(field::correlation_key); }

Value question(const Value& approval) {
  const bool decides = is_decision(approval);
  const std::string_view job = approval.text("job_id");
  std::string message;
  if (approval.text(field::kind) == to_text(RequestKind::call)) {
    std::string arguments = canonical(approval[field::arguments]);
    if (arguments.size() > kQuestionShownMax) {
      arguments = fmt::format("arguments of {} bytes (sha256 {})", arguments.size(),
                              approval.text(field::arguments_hash));
    }
    message =
        fmt::format("Job {} asks: may it call {} with {}?", job, approval.text("tool"), arguments);
  } else if (approval.text(field::kind) == to_text(RequestKind::question)) {
    message = fmt::format("Job {}, its tool {}: {}", job, approval.text("tool"),
                          approval["question"].text("message"));
    const std::string_view url = approval["question"].text("url");
    if (!url.empty()) message += fmt::format(" ({})", url);
  } else if (approval["question"].is_object()) {
    message = fmt::format("Job {} asks: {}", job, approval["question"].text("message"));
    std::string data = canonical(approval["question"]["data"]);
    if (data.size() > kQuestionShownMax) data = fmt::format("data of {} bytes", data.size());
    if (data != "null") message += fmt::format(" ({})", data);
  } else {
    message = fmt::format("Job {} asks: {} {}?", job, decides ? "approve" : "data for",
                          approval.text(field::correlation_key));
  }
  const Value text = Value::object({{"type", "string"}});
  const Value choice = Value::object(
      {{"enum", Value::array({Value("approve"), Value("reject")})}, {"type", "string"}});
  // A form cannot describe a value of any type; a client may also send its members without the form
  // (data_of).
  const Value payload =
      Value::object({{"description", "JSON; other text is taken as a string"}, {"type", "string"}});
  const Value schema =
      is_form_approval(approval) ? approval["question"]["schema"]
      : decides                  ? Value::object(
                      {{"properties", Value::object({{"decision", choice}, {field::note, text}})},
                                        {"required", Value::array({Value("decision")})},
                                        {"type", "object"}})
                : Value::object({{"properties", Value::object({{field::payload, payload}})},
                                 {"required", Value::array({Value(field::payload)})},
                                 {"type", "object"}});
  return Value::object({{"method", "elicitation/create"},
                        {"params", Value::object({{"message", std::move(message)},
                                                  {"mode", "form"},
                                                  {"requestedSchema", schema}})}});
}

// The value in an answer to a data question: its payload, or else all its members. nullopt: none.
std::optional<Value> data_of(const Value& content) {
  const Value* const text = content.find(field::payload);
  if (text == nullptr && content.is_object() && content.size() > 0) return content;
  if (text == nullptr || !text->is_string()) return std::nullopt;
  auto payload = parse_json(text->as_string(), {.bytes_max = kBodyMax});
  return payload ? *std::move(payload) : *text;
}

// The request with this answer; nullopt: the question stays open. Fails if the answer does not fit
// the question.
Result<std::optional<ApiRequest>> to_request(const Value& approval, const Value& answer) {
  const std::string_view action = answer.text("action");
  const Value& content = answer["content"];
  ApiRequest request;
  request.method = "POST";
  if (action != "accept" && action != "decline" && action != "cancel") {
    return fail(Code::input_invalid, "\"action\" must be accept, decline or cancel");
  }
  if (action == "cancel") return std::nullopt;
  if (!is_decision(approval)) {
    if (action == "decline") return std::nullopt;
    const std::optional<Value> data = data_of(content);
    if (!data) {
      return fail(Code::input_invalid,
                  "\"content\" must be {\"payload\": string}, or the data object itself");
    }
    request.path = {"api", "jobs", std::string(approval.text("job_id")), "signal"};
    request.body =
        canonical(Value::object({{field::correlation_key, approval[field::correlation_key]},
                                 {field::payload, *data},
                                 {field::wait_type, "human"}}));
    return request;
  }
  if (is_form_approval(approval) && action == "accept") {
    request.path = {"api", "approvals", std::string(approval.text("id"))};
    request.body = canonical(Value::object({{field::arguments, content}, {"decision", "approve"}}));
    return request;
  }
  const Value decision = action == "decline" ? Value("reject") : content["decision"];
  if (decision != Value("approve") && decision != Value("reject")) {
    return fail(Code::input_invalid, "\"decision\" must be approve or reject");
  }
  request.path = {"api", "approvals", std::string(approval.text("id"))};
  request.body =
      canonical(Value::object({{"decision", decision}, {field::note, content[field::note]}}));
  return request;
}

}  // namespace

// ---------------------------------------------------------------- questions to users

void Mcp::with_questions(const CallPtr& call, const Value& job, QuestionsCallback then) {
  const bool waits = std::ranges::any_of(items_of(job[field::waits]), [](const Value& wait) {
    return wait.text(field::wait_type) == "human";
  });
  if (!waits || store::has_ended(job.text("status")) || !call->supports_elicitation ||
      !has_access(call->caller.role, Access::decide)) {
    return then({});
  }
  call_route(
      call, "GET", {"api", "approvals"}, {{"job", std::string(job.text("id"))}}, {},
      [call, then = std::move(then)](const ApiResponse& response) mutable {
        if (response.status != 200) return call->refuse(response);
        std::vector<Value> questions;
        for (const Value& one : items_of(response.body["approvals"])) {
          // A verification can be asked again under its id: it is answered on the command line.
          if (one.text(field::kind) == to_text(RequestKind::confirmation)) continue;
          questions.push_back(Value::object({{"key", wait_key(one)}, {"request", question(one)}}));
        }
        then(questions);
      });
}

// Answers to questions that are no longer open are ignored: another client may have answered them.
void Mcp::apply_answers(const CallPtr& call, const std::string& job, async::Task then) {
  const Value& answers = call->params()["inputResponses"];
  if (answers.is_null()) return then();
  if (!answers.is_object() || answers.size() > kMcpInputResponsesMax) {
    return call->refuse_params("\"inputResponses\" must be an object of at most 100 answers");
  }
  call_route(
      call, "GET", {"api", "approvals"}, {{"job", job}}, {},
      [this, call, then = std::move(then)](const ApiResponse& response) mutable {
        if (response.status != 200) return call->refuse(response);
        auto requests = std::make_shared<std::vector<ApiRequest>>();
        for (const Value& one : items_of(response.body["approvals"])) {
          const Value* const answer = call->params()["inputResponses"].find(wait_key(one));
          if (answer == nullptr || one.text(field::kind) == to_text(RequestKind::confirmation))
            continue;
          auto request = to_request(one, *answer);
          if (!request) return call->refuse_params(request.error().message);
          if (*request) requests->push_back(*std::move(*request));
        }
        std::ranges::reverse(*requests);
        apply_next_answer(call, std::move(requests), std::move(then));
      });
}

void Mcp::apply_next_answer(const CallPtr& call, std::shared_ptr<std::vector<ApiRequest>> requests,
                            async::Task then) {
  if (requests->empty()) return then();
  ApiRequest request = std::move(requests->back());
  requests->pop_back();
  request.by = call->caller.by;
  request.role = call->caller.role;
  request.local = call->caller.local;
  send(std::move(request),
       [this, call, requests, then = std::move(then)](const ApiResponse& done) mutable {
         const bool late = done.status == 404 || done.status == 409;
         if (done.status >= 400 && !late) return call->refuse(done);
         apply_next_answer(call, requests, std::move(then));
       });
}

// ---------------------------------------------------------------- tasks

void Mcp::with_task(const CallPtr& call, WithJob then) {
  if (call->modern() && !call->supports_tasks) {
    const Value needed = Value::object({{std::string(mcp::kTasks), Value::object({})}});
    return call->refuse({.code = mcp::kMissingCapability,
                         .message = "Missing required client capability",
                         .data = Value::object(
                             {{"requiredCapabilities", Value::object({{"extensions", needed}})}})});
  }
  if (!call->modern() && call->revision != mcp::Revision::r2025_11_25) {
    return call->refuse({.code = mcp::kMethodNotFound,
                         .message = fmt::format("tasks are not supported in revision {}",
                                                mcp::to_text(call->revision))});
  }
  const auto job = job_of(call->params()["taskId"]);
  if (!job) return call->refuse_params("\"taskId\" must be a task id");
  call_route(call, "GET", {"api", "jobs", *job}, {}, {},
             [call, then = std::move(then)](const ApiResponse& response) mutable {
               if (response.status == 404) return call->refuse_params("Task not found");
               if (response.status != 200) return call->refuse(response);
               then(response.body);
             });
}

// `is_new`: the response to the call that created the job.
void Mcp::answer_with_task(const CallPtr& call, const Value& job, bool is_new) {
  if (!call->modern()) {
    const Value task = task_of(job, false, false);
    return finish(call, is_new ? Value::object({{"task", task}}) : task);
  }
  if (is_new) return finish(call, task_of(job, true, false).with("resultType", "task"));
  with_questions(call, job, [this, call, job](const std::vector<Value>& questions) {
    Value task = task_of(job, true, !questions.empty());
    if (task.text("status") == "completed") {
      task =
          task.with(field::result, job_result(call->revision, job).with("resultType", "complete"));
    }
    if (!questions.empty()) {
      std::vector<Member> requests;
      requests.reserve(questions.size());
      for (const Value& one : questions) requests.emplace_back(one.text("key"), one["request"]);
      task = task.with("inputRequests", Value::object(std::move(requests)));
    }
    finish(call, task);
  });
}

void Mcp::get_task(CallPtr call) {
  with_task(call, [this, call](const Value& job) { answer_with_task(call, job, false); });
}

void Mcp::update_task(CallPtr call) {
  with_task(call, [this, call](const Value& job) {
    if (!call->params()["inputResponses"].is_object()) {
      return call->refuse_params("\"inputResponses\" must be an object");
    }
    apply_answers(call, std::string(job.text("id")),
                  [this, call] { finish(call, Value::object({})); });
  });
}

void Mcp::cancel_task(CallPtr call) {
  with_task(call, [this, call](const Value& job) {
    const std::string id(job.text("id"));
    call_route(call, "POST", {"api", "jobs", id, "cancel"}, {},
               Value::object({{field::reason, "tasks/cancel"}}),
               [this, call, id](const ApiResponse& done) {
                 const bool over = done.body.text(field::code) == code_name(Code::job_terminal);
                 if (over && !call->modern()) return call->refuse_params("the task has ended");
                 if (done.status >= 400 && !over) return call->refuse(done);
                 if (call->modern()) return finish(call, Value::object({}));
                 call_route(call, "GET", {"api", "jobs", id}, {}, {},
                            [this, call](const ApiResponse& response) {
                              if (response.status != 200) return call->refuse(response);
                              answer_with_task(call, response.body, false);
                            });
               });
  });
}

void Mcp::list_tasks(CallPtr call) {
  if (call->revision != mcp::Revision::r2025_11_25) {
    return call->refuse({.code = mcp::kMethodNotFound,
                         .message = fmt::format("tasks are not supported in revision {}",
                                                mcp::to_text(call->revision))});
  }
  QueryPairs query{{"limit", std::to_string(kMcpPage)}};
  const Value& cursor = call->params()["cursor"];
  if (!cursor.is_null() && !cursor.is_string()) {
    return call->refuse_params("\"cursor\" must be one that a response returned");
  }
  if (cursor.is_string()) query.emplace_back("cursor", cursor.as_string());
  call_route(call, "GET", {"api", "jobs"}, std::move(query), {},
             [this, call](const ApiResponse& response) {
               if (response.status != 200) return call->refuse(response);
               std::vector<Value> tasks;
               for (const Value& row : items_of(response.body["jobs"]))
                 tasks.push_back(task_of(row, false, false));
               Value result = Value::object({{"tasks", Value::array(std::move(tasks))}});
               if (const Value& next = response.body["next_cursor"]; next.is_string()) {
                 result = result.with("nextCursor", next);
               }
               finish(call, result);
             });
}

void Mcp::task_result(CallPtr call) {
  with_task(call, [this, call](const Value& first) {
    follow(call, first, [this, call](const Value& job) {
      if (!store::has_ended(job.text("status"))) {
        return call->refuse({.code = 409, .message = "the task has not ended; poll tasks/get"});
      }
      const Value result = job_result(call->revision, job);
      finish(call,
             result.with("_meta", result["_meta"].with(mcp::kRelatedTask,
                                                       Value::object({{"taskId", job["id"]}}))));
    });
  });
}

}  // namespace ae::api
