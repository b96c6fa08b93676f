// Mcp: the Model Context Protocol, spoken by the routes.
//
// Each agent is a tool; the job that a call makes is durable, so whoever lost the connection finds it again: as a task, by
// its id, or by calling again under the same key. Jobs are resources. All that is done is asked of the routes as whoever
// sent the message, so that keys, roles and limits are theirs. No message is needed to understand another one: any server of
// a store answers any of them (docs/decisions/0051-mcp-server.md).
// Threads: the loop's.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "api/api.h"
#include "async/loop.h"
#include "json/value.h"
#include "mcp/message.h"

namespace ae::api {

// A call of an agent is answered after so long, whether its job has ended or not: clients wait a minute.
constexpr Duration kMcpCallWait = std::chrono::seconds(45);
// … and a client that knows tasks is given one after so long: what is quick needs no second question.
constexpr Duration kMcpTaskAfter = std::chrono::milliseconds(500);
constexpr std::size_t kMcpPage = 100;  // entries of one list
constexpr std::size_t kMcpInputResponsesMax = 100;
// Tools of our own, beside the agents. An agent whose name begins so is not offered.
constexpr std::string_view kMcpOwnTools = "aetheris_";

class Mcp {
 public:
  // Asks a route, here or elsewhere.
  using Asker = std::function<void(ApiRequest, async::Done<ApiResponse>)>;

  // Borrows the loop and the clock.
  Mcp(async::Loop& loop, async::SteadyClock& steady, Asker asker, std::string version);
  ~Mcp();
  Mcp(const Mcp&) = delete;
  Mcp& operator=(const Mcp&) = delete;

  // The body is one message, or an array of them where the revision knows that. Always answers, once; `rpc` is set. A
  // notification is answered with no body.
  void answer(ApiRequest request, async::Done<ApiResponse> done);
  // Calls that wait are answered with what there is, from now on.
  void stop_waiting() { leaving_ = true; }

 private:
  struct Call;  // mcp_call.h
  using Ask = std::shared_ptr<Call>;
  using Then = std::move_only_function<void(const ApiResponse&)>;
  using WithJob = std::move_only_function<void(const Value& job)>;
  using Said = std::move_only_function<void(const std::vector<Value>& approvals)>;
  struct Method;
  static const Method kMethods[];
  struct OwnTool;
  static const OwnTool kTools[];

  void one(ApiRequest request, const Value& value, async::Done<ApiResponse> done);
  void batch(const ApiRequest& request, const Value& all, async::Done<ApiResponse> done);
  std::expected<void, mcp::RpcError> understand(Call& call) const;
  void finish(const Ask& call, Value result) const;
  void initialize(Ask call);
  void discover(Ask call);
  void ping(Ask call);

  void list_tools(Ask call);
  void call_tool(Ask call);
  void call_agent(Ask call);
  void start_job(const Ask& call, const Value& agent);
  void started(const Ask& call, const ApiResponse& made);
  void go_on(const Ask& call, const std::string& job);
  void end_call(const Ask& call, const Value& job);
  void look_at_job(Ask call);
  void answer_wait(Ask call);
  void answer_question(const Ask& call, const Value& asked);
  void answer_again(const Ask& call);
  void signal_job(Ask call);
  void cancel_job(Ask call);
  void act(const Ask& call, Path path, const Value& body);

  void get_task(Ask call);
  void update_task(Ask call);
  void cancel_task(Ask call);
  void list_tasks(Ask call);
  void task_result(Ask call);
  void with_task(const Ask& call, WithJob then);
  void tell_task(const Ask& call, const Value& job, bool made);
  void take_answers(const Ask& call, const std::string& job, async::Task then);
  void next_answer(const Ask& call, std::shared_ptr<std::vector<ApiRequest>> acts,
                   async::Task then);

  void list_resources(Ask call);
  void list_templates(Ask call);
  void read_resource(Ask call);

  // One route, as whoever sent the message.
  void ask(const Ask& call, std::string_view method, Path path, QueryPairs query, const Value& body,
           Then then);
  void send(ApiRequest request, Then then);
  // What the job asks people; of a client that cannot ask them, nothing.
  void with_questions(const Ask& call, const Value& job, Said then);
  // Calls back when the job needs somebody, has ended, or the time is over.
  void follow(const Ask& call, const Value& job, WithJob then);
  void look_again(const Ask& call, const std::string& job, WithJob then);

  async::Loop& loop_;
  async::SteadyClock& steady_;
  const Asker asker_;
  const std::string version_;
  bool leaving_ = false;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace ae::api
