// Dispatches an MCP message by its kind, revision and method.
#include "api/mcp.h"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "api/api_context.h"
#include "api/mcp_call.h"
#include "api/operations.h"
#include "api/problem.h"
#include "api/request_context.h"
#include "json/json.h"
#include "log/field_names.h"
#include "mcp/server/request_revision.h"

namespace ae::api {
namespace {

constexpr std::string_view kInstructions =
    "Every tool except aetheris_* is a durable agent: a call starts a job that survives restarts "
    "of "
    "server and client.\n"
    "A job that takes long or needs an answer returns its job_id: follow it with aetheris_job, "
    "answer "
    "it with aetheris_answer or aetheris_signal,\n"
    "cancel it with aetheris_cancel.\n"
    "To repeat a call without starting a second job, send _meta[\"aetheris/idempotency-key\"].\n"
    "Jobs are resources: aetheris://jobs/{id}, …/trace, …/events.";

// How long clients may cache the response to `server/discover`, in milliseconds.
constexpr int kServerTtl = 3'600'000;
// Bytes that a waiting call keeps of its message: its id and its progress token.
constexpr std::size_t kIdMax = 1024;

Value empty() { return Value::object({}); }

ApiResponse rpc(int status, Value message) {
  ApiResponse answer{.status = status, .body = std::move(message), .location = {}, .text = {}};
  answer.rpc = true;
  return answer;
}

// The HTTP status of an error. Legacy revisions report everything except an invalid message in the
// body only.
int status_of(const mcp::RpcError& error, bool modern) {
  switch (error.code) {
    case mcp::kParseError:
    case mcp::kInvalidRequest:
    case mcp::kHeaderMismatch:
    case mcp::kMissingCapability:
    case mcp::kUnsupportedVersion:
      return 400;
    case mcp::kMethodNotFound:
      return modern ? 404 : 200;
    default:
      return 200;
  }
}

}  // namespace

struct Mcp::Method {
  std::string_view name;
  bool legacy, modern;
  void (Mcp::*handle)(CallPtr);
};

const Mcp::Method Mcp::kMethods[] = {
    {"initialize", true, false, &Mcp::initialize},
    {"ping", true, false, &Mcp::ping},
    {"server/discover", false, true, &Mcp::discover},
    {"tools/list", true, true, &Mcp::list_tools},
    {"tools/call", true, true, &Mcp::call_tool},
    {"resources/list", true, true, &Mcp::list_resources},
    {"resources/templates/list", true, true, &Mcp::list_templates},
    {"resources/read", true, true, &Mcp::read_resource},
    {"tasks/get", true, true, &Mcp::get_task},
    {"tasks/cancel", true, true, &Mcp::cancel_task},
    {"tasks/update", false, true, &Mcp::update_task},
    {"tasks/list", true, false, &Mcp::list_tasks},
    {"tasks/result", true, false, &Mcp::task_result},
};

void Mcp::Call::read_client() {
  const Value& elicitation = client()["elicitation"];
  supports_tasks = modern() && client()["extensions"][mcp::kTasks].is_object();
  supports_elicitation = modern() && elicitation.is_object() &&
                         (elicitation.size() == 0 || elicitation["form"].is_object());
  requests_task = revision == mcp::Revision::r2025_11_25 && params()["task"].is_object();
}

void Mcp::Call::drop_params() {
  message.params = Value();
  caller.body_quota.reset();
}

void Mcp::Call::refuse(mcp::RpcError error, int status) {
  if (error.id.is_null()) error.id = message.id;
  const int code = status != 0 ? status : status_of(error, modern());
  done(rpc(code, mcp::error_response(error)));
}

void Mcp::Call::refuse(const ApiResponse& refused) {
  const Error error = error_of_problem(refused.body, refused.status);
  mcp::RpcError answer{.code = refused.status, .message = error.message, .data = refused.body};
  // A code outside JSON-RPC's range is defined by the application: we use the HTTP status.
  if (error.code == Code::not_found || error.code == Code::input_invalid) {
    answer.code = mcp::kInvalidParams;
  }
  refuse(std::move(answer), error.code == Code::forbidden ? 403 : 0);
}

Mcp::Mcp(async::Loop& loop, async::SteadyClock& steady, RequestHandler asker, std::string version)
    : loop_(loop), steady_(steady), handler_(std::move(asker)), version_(std::move(version)) {}

Mcp::~Mcp() = default;

// ---------------------------------------------------------------- requests

void Mcp::answer(ApiRequest request, async::Done<ApiResponse> done) {
  const auto value = mcp::parse_message(request.body);
  if (!value) return done(rpc(400, mcp::error_response(value.error())));
  request.body.clear();
  if (value->is_array()) return handle_batch(request, *value, std::move(done));
  handle_message(std::move(request), *value, std::move(done));
}

void Mcp::handle_batch(const ApiRequest& request, const Value& all, async::Done<ApiResponse> done) {
  const auto revision =
      mcp::revision_of_batch({.headers = request.mcp_headers, .negotiated = request.mcp_revision});
  if (!revision || all.size() == 0 || all.size() > mcp::kBatchMax) {
    return done(rpc(
        400,
        mcp::error_response({.code = mcp::kInvalidRequest,
                             .message = revision ? "a batch must have 1 to 100 messages"
                                                 : "this MCP revision does not support batches"})));
  }
  struct BatchAnswers {
    std::vector<Value> answers;
    std::size_t pending;
    async::Done<ApiResponse> done;
  };
  auto batch = std::make_shared<BatchAnswers>(
      BatchAnswers{.answers = {}, .pending = all.size(), .done = std::move(done)});
  for (const Value& message : all.items()) {
    ApiRequest each = request;
    each.on_notification = nullptr;
    each.render = nullptr;
    each.mcp_headers.reset();
    each.mcp_revision = revision;
    handle_message(std::move(each), message, [batch](ApiResponse answer) {
      if (!answer.body.is_null()) batch->answers.push_back(std::move(answer.body));
      if (--batch->pending > 0) return;
      const bool silent = batch->answers.empty();
      batch->done(
          rpc(silent ? 202 : 200, silent ? Value() : Value::array(std::move(batch->answers))));
    });
  }
}

void Mcp::handle_message(ApiRequest request, const Value& value, async::Done<ApiResponse> done) {
  auto message = mcp::read_message(value);
  if (!message) return done(rpc(400, mcp::error_response(message.error())));
  auto call = std::make_shared<Call>();
  call->caller = std::move(request);
  call->over_http = call->caller.mcp_headers.has_value();
  call->message = *std::move(message);
  call->done = std::move(done);
  const auto revision = mcp::revision_of(call->message, {.headers = call->caller.mcp_headers,
                                                         .negotiated = call->caller.mcp_revision});
  if (!revision) return call->refuse(revision.error(), 400);
  call->revision = *revision;
  // We never send requests to a client, so a response answers nothing; other notifications are
  // ignored.
  if (call->message.kind != mcp::Message::Kind::request) return call->done(rpc(202, {}));
  const Method* found = std::ranges::find(kMethods, call->message.method, &Method::name);
  const bool known =
      found != std::end(kMethods) && (call->modern() ? found->modern : found->legacy);
  if (!known) {
    return call->refuse({.code = mcp::kMethodNotFound,
                         .message = fmt::format("unknown method \"{}\" in revision {} here",
                                                mcp::clip_text(call->message.method),
                                                mcp::to_text(call->revision))});
  }
  const Value& token = call->meta()["progressToken"];
  if (!token.is_null() && !token.is_string() && !token.is_integer()) {
    return call->refuse_params("\"progressToken\" must be a string or an integer");
  }
  for (const Value& kept : {token, call->message.id}) {
    if (kept.is_string() && kept.as_string().size() > kIdMax) {
      return call->refuse_params("an id or \"progressToken\" can have at most 1024 bytes");
    }
  }
  call->read_client();
  call->progress_token = token;
  for (const auto& [name, header] : {std::pair{field::traceparent, &call->caller.traceparent},
                                     std::pair{field::tracestate, &call->caller.tracestate}}) {
    if (header->empty()) *header = call->meta().text(name);
  }
  call->until = steady_.since_start() + kMcpCallWait;
  (this->*found->handle)(call);
}

// ---------------------------------------------------------------- responses

Mcp::MessageFrame Mcp::frame_of(const Call& call) const {
  return {.id = call.message.id, .modern = call.modern(), .version = version_};
}

Value Mcp::MessageFrame::message(Value result) const {
  if (modern) {
    if (result["resultType"].is_null()) result = result.with("resultType", "complete");
    const Value us = Value::object({{"name", "aetheris"}, {field::version, version}});
    const Value meta = result["_meta"].is_object() ? result["_meta"] : empty();
    result = result.with("_meta", meta.with(mcp::kServerInfo, us));
  }
  return mcp::response(id, result);
}

void Mcp::finish(const CallPtr& call, Value result) const {
  call->done(rpc(200, frame_of(*call).message(std::move(result))));
}

void Mcp::send(ApiRequest request, Then then) {
  handler_(std::move(request),
           [alive = alive_.watch(), then = std::move(then)](ApiResponse answer) mutable {
             if (alive) then(std::move(answer));
           });
}

ApiRequest Mcp::route_request(const Call& call, std::string_view method, Path path,
                              QueryPairs query) const {
  ApiRequest request;
  request.method = method;
  request.path = std::move(path);
  request.query = std::move(query);
  request.traceparent = call.caller.traceparent;
  request.tracestate = call.caller.tracestate;
  request.by = call.caller.by;
  request.role = call.caller.role;
  request.local = call.caller.local;
  request.disconnected = call.caller.disconnected;
  return request;
}

void Mcp::call_route(const CallPtr& call, std::string_view method, Path path, QueryPairs query,
                     const Value& body, Then then) {
  ApiRequest request = route_request(*call, method, std::move(path), std::move(query));
  if (!body.is_null()) request.body = canonical(body);
  send(std::move(request), std::move(then));
}

// ---------------------------------------------------------------- server info

void Mcp::initialize(CallPtr call) {
  const Value& requested = call->params()["protocolVersion"];
  if (!requested.is_string()) return call->refuse_params("\"protocolVersion\" must be a string");
  const auto known = mcp::revision_from_text(requested.as_string());
  const mcp::Revision agreed = known && !mcp::is_modern(*known) ? *known : mcp::kNewestLegacy;
  call->revision = agreed;
  Value offers = Value::object({{"resources", empty()}, {"tools", empty()}});
  if (agreed == mcp::Revision::r2025_11_25) {
    offers = offers.with(
        "tasks", Value::object({{"cancel", empty()},
                                {"list", empty()},
                                {"requests",
                                 Value::object({{"tools", Value::object({{"call", empty()}})}})}}));
  }
  finish(call,
         Value::object(
             {{"capabilities", offers},
              {"instructions", kInstructions},
              {"protocolVersion", mcp::to_text(agreed)},
              {"serverInfo", Value::object({{"name", "aetheris"}, {field::version, version_}})}}));
}

void Mcp::discover(CallPtr call) {
  const Value offers =
      Value::object({{"extensions", Value::object({{std::string(mcp::kTasks), empty()}})},
                     {"resources", empty()},
                     {"tools", empty()}});
  finish(call, Value::object({{"cacheScope", "private"},
                              {"capabilities", offers},
                              {"instructions", kInstructions},
                              {"supportedVersions", mcp::all_revisions()},
                              {"ttlMs", kServerTtl}}));
}

void Mcp::ping(CallPtr call) { finish(call, empty()); }

// ---------------------------------------------------------------- the route

// Each method of a message calls a route with the same principal.
void operations::mcp(ApiContext& api, RequestPtr ctx) {
  api.mcp.answer(std::move(ctx->request), std::move(ctx->done));
}

}  // namespace ae::api
