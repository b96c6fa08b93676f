// Mcp: the Model Context Protocol, implemented on the routes.
//
// Each agent is a tool. The job that a call creates is durable, so a client that lost its
// connection finds it again: as a task, by its id, or by repeating the call with the same key. Jobs
// are resources. Every operation goes through a route with the principal of the message, so its
// keys, roles and limits apply. Messages are stateless: any server of a store can answer any of
// them (docs/decisions/0051-mcp-server.md).
// Threads: the loop's.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "api/api_request.h"
#include "async/alive.h"
#include "async/loop.h"
#include "json/value.h"
#include "mcp/protocol/message.h"

namespace ae::api {

// A call of an agent is answered after this at the latest, also if its job has not ended: clients
// time out after a minute.
constexpr Duration kMcpCallWait = std::chrono::seconds(45);
// A client that supports tasks gets one after this: a shorter job needs no second request.
constexpr Duration kMcpTaskAfter = std::chrono::milliseconds(500);
constexpr std::size_t kMcpPage = 100;  // entries of one list
constexpr std::size_t kMcpInputResponsesMax = 100;
// The prefix of our own tools. An agent whose name starts with it is not offered.
constexpr std::string_view kMcpBuiltinTools = "aetheris_";

class Mcp {
 public:
  // Sends a request to a route, here or elsewhere.
  using RequestHandler = std::function<void(ApiRequest, async::Done<ApiResponse>)>;

  // Borrows the loop and the clock.
  Mcp(async::Loop& loop, async::SteadyClock& steady, RequestHandler asker, std::string version);
  ~Mcp();
  Mcp(const Mcp&) = delete;
  Mcp& operator=(const Mcp&) = delete;

  // The body is one message, or an array of them if the revision allows that. Responds exactly
  // once; `rpc` is set. A notification gets no body.
  void answer(ApiRequest request, async::Done<ApiResponse> done);
  // Waiting calls are answered with the current state.
  void stop_waiting() { shutting_down_ = true; }

 private:
  struct Call;  // mcp_call.h
  using CallPtr = std::shared_ptr<Call>;
  using Then = std::move_only_function<void(ApiResponse)>;
  using WithJob = std::move_only_function<void(const Value& job)>;
  using QuestionsCallback = std::move_only_function<void(const std::vector<Value>& approvals)>;
  struct Method;
  static const Method kMethods[];
  struct BuiltinTool;
  static const BuiltinTool kTools[];

  void handle_message(ApiRequest request, const Value& value, async::Done<ApiResponse> done);
  void handle_batch(const ApiRequest& request, const Value& all, async::Done<ApiResponse> done);
  void finish(const CallPtr& call, Value result) const;
  // The message with the result. It may be called on a reader thread.
  struct MessageFrame {
    Value id;
    bool modern = false;
    std::string version;  // of this program
    Value message(Value result) const;
  };
  MessageFrame frame_of(const Call& call) const;
  void initialize(CallPtr call);
  void discover(CallPtr call);
  void ping(CallPtr call);

  void list_tools(CallPtr call);
  void call_tool(CallPtr call);
  void call_agent(CallPtr call);
  void start_job(const CallPtr& call, const Value& agent);
  void on_job_created(const CallPtr& call, const ApiResponse& created);
  void continue_call(const CallPtr& call, const std::string& job);
  void end_call(const CallPtr& call, const Value& job);
  void read_job(CallPtr call);
  void list_requests(CallPtr call);
  void answer_wait(CallPtr call);
  void answer_question(const CallPtr& call, const Value& question);
  void answer_closed_question(const CallPtr& call);
  void answer_earlier_question(const CallPtr& call, std::int64_t after, std::vector<Value> keys);
  void signal_job(CallPtr call);
  void cancel_job(CallPtr call);
  void post_request(const CallPtr& call, Path path, const Value& body);

  void get_task(CallPtr call);
  void update_task(CallPtr call);
  void cancel_task(CallPtr call);
  void list_tasks(CallPtr call);
  void task_result(CallPtr call);
  void with_task(const CallPtr& call, WithJob then);
  void answer_with_task(const CallPtr& call, const Value& job, bool is_new);
  void apply_answers(const CallPtr& call, const std::string& job, async::Task then);
  void apply_next_answer(const CallPtr& call, std::shared_ptr<std::vector<ApiRequest>> requests,
                         async::Task then);

  void list_resources(CallPtr call);
  void list_templates(CallPtr call);
  void read_resource(CallPtr call);

  // Calls one route with the principal of the message.
  void call_route(const CallPtr& call, std::string_view method, Path path, QueryPairs query,
                  const Value& body, Then then);
  ApiRequest route_request(const Call& call, std::string_view method, Path path,
                           QueryPairs query) const;
  void send(ApiRequest request, Then then);
  // The open questions of the job to its users; none if the client does not support elicitation.
  void with_questions(const CallPtr& call, const Value& job, QuestionsCallback then);
  // Calls back when the job is blocked on a user, has ended, or the time is up.
  void follow(const CallPtr& call, const Value& job, WithJob then);
  void reread_job(const CallPtr& call, const std::string& job, WithJob then);

  async::Loop& loop_;
  async::SteadyClock& steady_;
  const RequestHandler handler_;
  const std::string version_;
  bool shutting_down_ = false;
  async::Alive alive_;
};

}  // namespace ae::api
