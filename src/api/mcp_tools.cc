// MCP tools: agents, whose calls create jobs, and built-in tools that follow and answer jobs.
#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "api/mcp.h"
#include "api/mcp_call.h"
#include "api/problem.h"
#include "api/request_kinds.h"
#include "inspect/request_kind.h"
#include "json/json.h"
#include "log/field_names.h"
#include "store/rules.h"

namespace ae::api {
namespace {

constexpr std::string_view kCursor = "after:";
constexpr std::string_view kIdempotencyKeyMeta = "aetheris/idempotency-key";
constexpr std::string_view kWrappedInput = field::input;
constexpr std::size_t kWaitSecondsMax = 45;
constexpr std::size_t kRequestsPage = 20;
constexpr int kToolsTtl = 10'000;  // milliseconds; agents can be registered at any time

Value text_type(std::string_view what) {
  return Value::object({{"description", what}, {"type", "string"}});
}

Value object_schema(Value properties, std::vector<Value> required) {
  return Value::object({{"additionalProperties", false},
                        {"properties", std::move(properties)},
                        {"required", Value::array(std::move(required))},
                        {"type", "object"}});
}

Value job_schema(std::vector<Member> more, std::vector<Value> required = {}) {
  more.emplace_back("job_id", text_type("The job id that the agent's call returned"));
  required.emplace_back("job_id");
  return object_schema(Value::object(std::move(more)), std::move(required));
}

// Arguments are always an object; an agent's input need not be one.
bool takes_object(const Value& schema) {
  if (!schema.is_object()) return true;
  const Value& type = schema["type"];
  return type.is_null() || type == Value("object");
}

Value input_schema(const Value& agent) {
  const Value& schema = agent["input_schema"];
  if (!takes_object(schema)) {
    return object_schema(Value::object({{std::string(kWrappedInput), schema}}),
                         {Value(kWrappedInput)});
  }
  return schema.is_object() ? schema.with("type", "object") : Value::object({{"type", "object"}});
}

// An agent can do whatever its tools do, so the hints promise nothing.
Value agent_tool(const Value& agent, mcp::Revision revision) {
  std::string what(agent.text("description"));
  if (what.empty()) what = fmt::format("The agent {}", agent.text("name"));
  Value tool = Value::object(
      {{"description", what}, {"inputSchema", input_schema(agent)}, {"name", agent["name"]}});
  if (revision >= mcp::Revision::r2025_03_26) {
    tool = tool.with("annotations", Value::object({{"destructiveHint", true},
                                                   {"idempotentHint", false},
                                                   {"openWorldHint", true},
                                                   {"readOnlyHint", false}}));
  }
  if (revision == mcp::Revision::r2025_11_25) {
    tool = tool.with("execution", Value::object({{"taskSupport", "optional"}}));
  }
  return tool;
}

// The state of a call is its job, and the job's last event at that time: JOB.SEQ.
std::string state_of(const Value& job) {
  return fmt::format("{}.{}", job.text("id"), job["seq"].as_int());
}

std::optional<std::string> job_of_state(const Value& state) {
  if (!state.is_string()) return std::nullopt;
  const std::string& text = state.as_string();
  const std::size_t dot = std::min(text.rfind('.'), text.size());
  const std::string_view seq = std::string_view(text).substr(std::min(dot + 1, text.size()));
  const bool is_valid =
      !seq.empty() && seq.size() <= 16 && seq.find_first_not_of("0123456789") == seq.npos;
  return is_valid ? job_of(Value(text.substr(0, dot))) : std::nullopt;
}

// It was answered before with another answer. Notes of a decision are not compared.
bool is_answered_differently(const Value& given, const Value& answer) {
  if (answer.find("duplicate") == nullptr) return false;
  const std::string_view outcome = answer.text(field::outcome);
  if (given.text("decision") == "approve" && !outcome.empty()) return outcome != "approved";
  if (given.text("decision") == "reject" && !outcome.empty()) return outcome != "rejected";
  const Value* payload = given.find(field::payload);
  return answer["applied"] == Value(false) && (!payload || answer[field::payload] != *payload);
}

// A form is an object; some clients send it as a JSON string.
Value form_of(const Value& payload) {
  if (!payload.is_string()) return payload;
  const auto read = parse_json(payload.as_string());
  return read && read->is_object() ? *read : payload;
}

bool is_offered(const Value& agent) {
  return agent["refused"].is_null() && !agent.text("name").starts_with(kMcpBuiltinTools);
}

}  // namespace

struct Mcp::BuiltinTool {
  std::string_view name, what;
  bool is_read_only, is_destructive;
  Value (*schema)();
  void (Mcp::*handle)(CallPtr);

  Value shown(mcp::Revision revision) const {
    Value tool = Value::object({{"description", what}, {"inputSchema", schema()}, {"name", name}});
    if (revision < mcp::Revision::r2025_03_26) return tool;
    return tool.with("annotations", Value::object({{"destructiveHint", is_destructive},
                                                   {"idempotentHint", true},
                                                   {"openWorldHint", false},
                                                   {"readOnlyHint", is_read_only}}));
  }
};

const Mcp::BuiltinTool Mcp::kTools[] = {
    {"aetheris_answer",
     "Answers a question that a job waits for (approve, reject, or the requested data). Use it "
     "only with the user's own decision.",
     false, true,
     [] {
       return job_schema(
           {{field::approval_id,
             text_type("The question's id, from aetheris_job; needed if there are several")},
            {"decision", Value::object({{"enum", Value::array({Value("approve"), Value("reject")})},
                                        {"type", "string"}})},
            {field::note, text_type("The reason, for the log")},
            {field::payload,
             Value::object({{"description", "The answer to a data question or a form"}})}});
     },
     &Mcp::answer_wait},
    {"aetheris_cancel", "Cancels a job. Effects are compensated where tools define it.", false,
     true, [] { return job_schema({{field::reason, text_type("The reason, for the log")}}); },
     &Mcp::cancel_job},
    {"aetheris_job", "Shows a job: status, result or error, open waits and how to answer them.",
     true, false,
     [] {
       return job_schema(
           {{"wait_seconds",
             Value::object(
                 {{"description",
                   "Return when the job has ended or is blocked, at most after this many seconds"},
                  {"maximum", std::uint64_t{kWaitSecondsMax}},
                  {"minimum", 0},
                  {"type", "integer"}})}});
     },
     &Mcp::read_job},
    {"aetheris_requests",
     "Lists what operators are asked for, of all jobs or of one: approvals, questions, waits, "
     "calls "
     "with an unknown outcome, used-up budgets; and how to answer.",
     true, false,
     [] {
       std::vector<Value> kinds;
       for (const auto& [name, kind] : kRequestKinds) kinds.emplace_back(name);
       return object_schema(
           Value::object({{"cursor", text_type("next_cursor of the previous page")},
                          {"job_id", text_type("Only the requests of this job, all of them")},
                          {field::kind, Value::object({{"enum", Value::array(std::move(kinds))},
                                                       {"type", "string"}})}}),
           {});
     },
     &Mcp::list_requests},
    {"aetheris_signal", "Sends a signal to a job, by correlation key.", false, true,
     [] {
       return job_schema(
           {{"key", text_type("The wait's correlation key, from aetheris_job")},
            {field::message_id, text_type("A deduplication id")},
            {field::payload, Value::object({{"description", "The payload of the signal"}})}},
           {Value("key")});
     },
     &Mcp::signal_job},
};

// ---------------------------------------------------------------- list of tools

void Mcp::list_tools(CallPtr call) {
  const Value& cursor = call->params()["cursor"];
  if (!cursor.is_null() && !(cursor.is_string() && cursor.as_string().starts_with(kCursor))) {
    return call->refuse_params("\"cursor\" must be one that a response returned");
  }
  call_route(call, "GET", {"api", "agents"}, {}, {}, [this, call](const ApiResponse& response) {
    if (response.status != 200) return call->refuse(response);
    std::vector<Value> all;
    for (const BuiltinTool& own : kTools) all.push_back(own.shown(call->revision));
    for (const Value& agent : items_of(response.body["agents"])) {
      if (is_offered(agent)) all.push_back(agent_tool(agent, call->revision));
    }
    std::ranges::sort(all, {}, [](const Value& tool) { return tool.text("name"); });
    const Value& from = call->params()["cursor"];
    if (from.is_string()) {
      const std::string_view after = std::string_view(from.as_string()).substr(kCursor.size());
      std::erase_if(all, [after](const Value& tool) { return tool.text("name") <= after; });
    }
    Value result = Value::object({});
    if (all.size() > kMcpPage) {
      all.resize(kMcpPage);
      result = result.with("nextCursor", fmt::format("{}{}", kCursor, all.back().text("name")));
    }
    result = result.with("tools", Value::array(std::move(all)));
    if (call->modern()) {
      result = result.with("cacheScope", "private").with("ttlMs", kToolsTtl);
    }
    finish(call, result);
  });
}

void Mcp::call_tool(CallPtr call) {
  const Value& name = call->params()["name"];
  const Value& arguments = call->params()[field::arguments];
  if (!name.is_string()) return call->refuse_params("\"name\" must be a string: the tool to call");
  if (!arguments.is_null() && !arguments.is_object()) {
    return call->refuse_params("\"arguments\" must be an object");
  }
  if (!name.as_string().starts_with(kMcpBuiltinTools)) return call_agent(std::move(call));
  const BuiltinTool* own =
      std::ranges::find(kTools, std::string_view(name.as_string()), &BuiltinTool::name);
  if (own == std::end(kTools)) {
    return call->refuse_params(fmt::format("Unknown tool: {}", mcp::clip_text(name.as_string())));
  }
  if (call->requests_task) {
    return call->refuse(
        {.code = mcp::kMethodNotFound,
         .message = fmt::format("{} does not support task execution", name.as_string())});
  }
  const Value schema = own->schema();
  const Value& known = schema["properties"];
  const Value given = arguments.is_null() ? Value::object({}) : arguments;
  for (const auto& [argument, value] : given.members()) {
    if (known.find(argument) == nullptr) {
      return finish(call,
                    tool_error(call->revision,
                               problem({Code::input_invalid,
                                        fmt::format("unknown argument \"{}\" of {}",
                                                    mcp::clip_text(argument), name.as_string())})));
    }
  }
  const bool names_job = schema["required"].size() > 0 || !arguments["job_id"].is_null();
  if (names_job && !job_of(arguments["job_id"])) {
    return finish(call, tool_error(call->revision,
                                   problem({Code::input_invalid, "\"job_id\" must be a job id"})));
  }
  (this->*own->handle)(std::move(call));
}

// ---------------------------------------------------------------- agents as tools

void Mcp::call_agent(CallPtr call) {
  const std::string name = call->params()["name"].as_string();
  const auto unknown = [name] { return fmt::format("Unknown tool: {}", mcp::clip_text(name)); };
  if (name.empty() || name.size() > 256) return call->refuse_params(unknown());
  call_route(call, "GET", {"api", "agents"}, {}, {},
             [this, call, name, unknown](const ApiResponse& response) {
               if (response.status != 200) return call->refuse(response);
               for (const Value& agent : items_of(response.body["agents"])) {
                 if (agent.text("name") == name && is_offered(agent)) return start_job(call, agent);
               }
               call->refuse_params(unknown());
             });
}

void Mcp::start_job(const CallPtr& call, const Value& agent) {
  if (call->supports_tasks) {
    call->until = std::min(call->until, steady_.since_start() + kMcpTaskAfter);
  }
  // A call that was answered with questions is repeated with their answers.
  const Value& state = call->params()["requestState"];
  if (!state.is_null()) {
    const auto job = job_of_state(state);
    if (!call->modern() || !job) {
      return call->refuse_params("\"requestState\" must be one that a response returned");
    }
    return call_route(
        call, "GET", {"api", "jobs", *job}, {}, {},
        [this, call, id = *job,
         name = std::string(agent.text("name"))](const ApiResponse& response) {
          if (response.status != 200 || response.body.text(field::agent) != name) {
            return call->refuse_params("\"requestState\" does not match a job of this agent");
          }
          apply_answers(call, id, [this, call, id] { continue_call(call, id); });
        });
  }
  const Value& arguments = call->params()[field::arguments];
  Value input = arguments.is_null() ? Value::object({}) : arguments;
  if (!takes_object(agent["input_schema"])) {
    const bool is_valid = input.size() == 1 && input.find(kWrappedInput) != nullptr;
    if (!is_valid) {
      return finish(
          call, tool_error(call->revision, problem({Code::input_invalid,
                                                    "this agent takes one argument, \"input\""})));
    }
    input = input[kWrappedInput];
  }
  ApiRequest request = call->caller;
  request.mcp_headers.reset();
  request.on_notification = nullptr;
  request.render = nullptr;  // the response is read here
  request.method = "POST";
  request.path = {"api", "jobs"};
  request.query.clear();
  std::vector<Member> body{{field::agent, agent["name"]}, {field::input, std::move(input)}};
  const Value& key = call->meta()[kIdempotencyKeyMeta];
  if (!key.is_null()) body.emplace_back(field::idempotency_key, key);
  request.body = canonical(Value::object(std::move(body)));
  if (call->progress_token.is_null() && !call->requests_task) {
    const Duration wait = std::max(Duration(0), call->until - steady_.since_start());
    request.query.emplace_back("wait", in_milliseconds(wait));
  }
  call->drop_params();
  send(std::move(request),
       [this, call](const ApiResponse& created) { on_job_created(call, created); });
}

void Mcp::on_job_created(const CallPtr& call, const ApiResponse& created) {
  if (created.status >= 400) {
    const Error error = error_of_problem(created.body, created.status);
    // Errors that the caller can correct go to the model, others to the client.
    const bool is_caller_error =
        created.status == 400 || created.status == 409 || created.status == 413;
    if (is_caller_error && error.code != Code::not_found) {
      return finish(call, tool_error(call->revision, created.body));
    }
    return call->refuse(created);
  }
  if (call->requests_task) return answer_with_task(call, created.body, true);
  follow(call, created.body, [this, call](const Value& job) { end_call(call, job); });
}

void Mcp::continue_call(const CallPtr& call, const std::string& job) {
  call_route(call, "GET", {"api", "jobs", job}, {}, {}, [this, call](const ApiResponse& response) {
    if (response.status != 200) return call->refuse(response);
    follow(call, response.body, [this, call](const Value& one) { end_call(call, one); });
  });
}

void Mcp::end_call(const CallPtr& call, const Value& job) {
  if (call->supports_tasks && !store::has_ended(job.text("status")))
    return answer_with_task(call, job, true);
  with_questions(call, job, [this, call, job](const std::vector<Value>& questions) {
    if (questions.empty()) return finish(call, job_result(call->revision, job));
    std::vector<Member> requests;
    requests.reserve(questions.size());
    for (const Value& one : questions) {
      requests.emplace_back(one.text("key"), one["request"]);
    }
    finish(call, Value::object({{"inputRequests", Value::object(std::move(requests))},
                                {"requestState", state_of(job)},
                                {"resultType", "input_required"}}));
  });
}

// ---------------------------------------------------------------- built-in tools

void Mcp::read_job(CallPtr call) {
  const Value& arguments = call->params()[field::arguments];
  const Value& wait = arguments["wait_seconds"];
  const bool is_valid = wait.is_null() || (wait.is_integer() && wait.as_int() >= 0 &&
                                           wait.as_int() <= std::int64_t{kWaitSecondsMax});
  if (!is_valid) {
    return finish(call, tool_error(call->revision,
                                   problem({Code::input_invalid,
                                            "\"wait_seconds\" must be an integer from 0 to 45"})));
  }
  const std::int64_t seconds = wait.is_null() ? 0 : wait.as_int();
  call->until = steady_.since_start() + std::chrono::seconds(seconds);
  call_route(call, "GET", {"api", "jobs", *job_of(arguments["job_id"])}, {}, {},
             [this, call](const ApiResponse& response) {
               if (response.status == 403) return call->refuse(response);
               if (response.status != 200)
                 return finish(call, tool_error(call->revision, response.body));
               follow(call, response.body, [this, call](const Value& job) {
                 // Here the failed job is the requested result, not an error.
                 const Value shown = job_result(call->revision, job);
                 finish(call,
                        shown.find("isError") == nullptr ? shown : shown.with("isError", false));
               });
             });
}

// A page of at most kRequestsPage requests; of one job, all.
void Mcp::list_requests(CallPtr call) {
  const Value& arguments = call->params()[field::arguments];
  QueryPairs query;
  constexpr std::pair<const char*, const char*> kParameters[] = {
      {"job_id", "job"}, {field::kind, field::kind}, {"cursor", "cursor"}};
  for (const auto& [argument, parameter] : kParameters) {
    const Value& given = arguments[argument];
    if (given.is_null()) continue;
    if (!given.is_string()) {
      return finish(call, tool_error(call->revision,
                                     problem({Code::input_invalid,
                                              fmt::format("\"{}\" must be a string", argument)})));
    }
    query.emplace_back(parameter, given.as_string());
  }
  if (arguments["job_id"].is_null()) query.emplace_back("limit", std::to_string(kRequestsPage));
  call_route(call, "GET", {"api", "requests"}, std::move(query), {},
             [this, call](const ApiResponse& response) {
               if (response.status == 403) return call->refuse(response);
               if (response.status != 200)
                 return finish(call, tool_error(call->revision, response.body));
               std::string text;
               for (const Value& request : items_of(response.body["requests"])) {
                 text +=
                     fmt::format("Job {}:\n{}\n", request.text("job_id"), request_text(request));
               }
               if (text.empty()) text = "There are no open requests.\n";
               if (const Value& next = response.body["next_cursor"]; next.is_string()) {
                 text += fmt::format("More: call aetheris_requests with \"cursor\": {}\n",
                                     canonical(next));
               }
               finish(call, tool_result(call->revision, std::move(text), response.body, false));
             });
}

void Mcp::post_request(const CallPtr& call, Path path, const Value& body) {
  call_route(call, "POST", std::move(path), {}, body, [this, call](const ApiResponse& done) {
    if (done.status == 403) return call->refuse(done);
    if (done.status >= 400) return finish(call, tool_error(call->revision, done.body));
    // Another answer was first: the client must not mistake its own for the recorded one.
    const bool differs = is_answered_differently(call->params()[field::arguments], done.body);
    finish(call, tool_result(call->revision, canonical(done.body), done.body, differs,
                             *job_of(call->params()[field::arguments]["job_id"])));
  });
}

void Mcp::cancel_job(CallPtr call) {
  const Value& arguments = call->params()[field::arguments];
  post_request(call, {"api", "jobs", arguments.find("job_id")->as_string(), "cancel"},
               Value::object({{field::reason, arguments[field::reason]}}));
}

void Mcp::signal_job(CallPtr call) {
  const Value& arguments = call->params()[field::arguments];
  post_request(call, {"api", "jobs", arguments.find("job_id")->as_string(), "signal"},
               Value::object({{field::correlation_key, arguments["key"]},
                              {field::message_id, arguments[field::message_id]},
                              {field::payload, arguments[field::payload]}}));
}

// The question may be omitted if the job has only one, open or already closed.
void Mcp::answer_wait(CallPtr call) {
  const std::string job = call->params()[field::arguments]["job_id"].as_string();
  call_route(
      call, "GET", {"api", "approvals"}, {{"job", job}}, {},
      [this, call, job](const ApiResponse& response) {
        const Value& given = call->params()[field::arguments];
        const auto refuse = [&](std::string what) {
          finish(call, tool_error(call->revision, problem({Code::input_invalid, std::move(what)})));
        };
        if (response.status == 403) return call->refuse(response);
        if (response.status != 200) return finish(call, tool_error(call->revision, response.body));
        const Value* open_question = nullptr;
        std::string ids;
        for (const Value& one : items_of(response.body["approvals"])) {
          ids.append(ids.empty() ? "" : ", ").append(one.text("id"));
          if (given[field::approval_id] == one["id"]) open_question = &one;
        }
        if (given[field::approval_id].is_null() && response.body["approvals"].size() == 1) {
          open_question = &items_of(response.body["approvals"])[0];
        }
        const bool decides = !given["decision"].is_null();
        if (decides == (given.find(field::payload) != nullptr)) {
          return refuse("set either \"decision\" or, if data is requested, \"payload\"");
        }
        if (open_question != nullptr) return answer_question(call, *open_question);
        const bool of_job = given.text(field::approval_id).starts_with(fmt::format("{}.", job));
        if (given[field::approval_id].is_null() ? ids.empty() : of_job)
          return answer_closed_question(call);
        refuse(ids.empty() ? "\"approval_id\" does not match a question of this job"
                           : fmt::format("\"approval_id\" must be one of {}", ids));
      });
}

void Mcp::answer_question(const CallPtr& call, const Value& question) {
  const Value& given = call->params()[field::arguments];
  const Path approval{"api", "approvals", std::string(question.text("id"))};
  if (!given["decision"].is_null()) {
    return post_request(
        call, approval,
        Value::object({{"decision", given["decision"]}, {field::note, given[field::note]}}));
  }
  if (question.text(field::kind) == to_text(engine::RequestKind::question)) {
    return post_request(call, approval,
                        Value::object({{field::arguments, form_of(given[field::payload])},
                                       {"decision", "approve"}}));
  }
  if (question.text("answer") != "data") {
    return finish(
        call, tool_error(call->revision, problem({Code::input_invalid,
                                                  "this question takes a \"decision\": approve or "
                                                  "reject"})));
  }
  post_request(call, {"api", "jobs", given["job_id"].as_string(), "signal"},
               Value::object({{field::correlation_key, question[field::correlation_key]},
                              {field::payload, given[field::payload]},
                              {field::wait_type, "human"}}));
}

// For a question that is no longer open: responds with the first answer.
void Mcp::answer_closed_question(const CallPtr& call) {
  const Value& given = call->params()[field::arguments];
  if (!given[field::approval_id].is_null()) {
    Value body = Value::object({{"decision", "approve"}, {field::note, given[field::note]}});
    if (!given["decision"].is_null()) body = body.with("decision", given["decision"]);
    if (const Value* payload = given.find(field::payload)) {
      body = body.with(field::arguments, form_of(*payload));
    }
    return post_request(call, {"api", "approvals", given[field::approval_id].as_string()}, body);
  }
  answer_earlier_question(call, 0, {});
}

// `keys`: of the questions up to event `after`.
void Mcp::answer_earlier_question(const CallPtr& call, std::int64_t after,
                                  std::vector<Value> keys) {
  const std::string job = call->params()[field::arguments]["job_id"].as_string();
  call_route(
      call, "GET", {"api", "jobs", job, "events"},
      {{"limit", "1000"}, {"type", "wait_completed"}, {"after", std::to_string(after)}}, {},
      [this, call, job, keys = std::move(keys)](const ApiResponse& response) mutable {
        if (response.status == 403) return call->refuse(response);
        if (response.status != 200) return finish(call, tool_error(call->revision, response.body));
        const Value& arguments = call->params()[field::arguments];
        for (const Value& event : items_of(response.body["events"])) {
          const Value& p = event[field::payload];
          const bool awaits_answer = p.text(field::wait_type) == "human" &&
                                     !p.text(field::correlation_key).starts_with("resolve/");
          if (awaits_answer) keys.push_back(p[field::correlation_key]);
        }
        if (const Value& next = response.body["next"]; next.is_integer() && keys.size() < 2) {
          return answer_earlier_question(call, next.as_int(), std::move(keys));
        }
        if (keys.size() != 1) {
          return finish(
              call, tool_error(
                        call->revision,
                        problem({Code::input_invalid,
                                 keys.empty() ? "the job has no open question"
                                              : "the job has no open question; set \"approval_id\" "
                                                "to answer an earlier one again"})));
        }
        Value payload = arguments[field::payload];
        if (!arguments["decision"].is_null()) {
          payload = Value::object({{"decision", arguments["decision"]}});
          if (arguments[field::note].is_string() && !arguments.text(field::note).empty()) {
            payload = payload.with(field::note, arguments[field::note]);
          }
        } else if (keys[0].as_string().starts_with("input/")) {
          payload = Value::object({{"action", "accept"}, {"content", form_of(payload)}});
        }
        post_request(call, {"api", "jobs", job, "signal"},
                     Value::object({{field::correlation_key, keys[0]},
                                    {field::payload, payload},
                                    {field::wait_type, "human"}}));
      });
}

}  // namespace ae::api
