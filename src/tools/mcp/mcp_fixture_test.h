// McpFixture: a Server with a scripted transport, on a loop with manual timers.
#pragma once

#include <algorithm>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "json/json.h"
#include "testing/permit.h"
#include "testing/test.h"
#include "tools/mcp/listing.h"
#include "tools/mcp/server.h"

namespace ae::tools::mcp {

using namespace std::chrono_literals;
using Kind = Reply::Kind;

// Runs posted tasks; timers fire only by `fire`.
class ManualLoop final : public async::Loop {
 public:
  void post(async::Task task) override { tasks_.push_back(std::move(task)); }
  async::TimerId after(Duration delay, async::Task task) override {
    timers_.emplace(++last_, std::pair(delay, std::move(task)));
    return last_;
  }
  void cancel(async::TimerId timer) override { timers_.erase(timer); }
  void run() {
    while (!tasks_.empty()) {
      async::Task task = std::move(tasks_.front());
      tasks_.pop_front();
      task();
    }
  }
  // Fires all timers with at most this delay.
  void fire(Duration most) {
    std::vector<async::TimerId> due;
    for (const auto& [id, timer] : timers_) {
      if (timer.first <= most) due.push_back(id);
    }
    for (const async::TimerId id : due) {
      auto timer = timers_.extract(id);
      if (!timer.empty()) timer.mapped().second();
      run();
    }
  }

 private:
  std::deque<async::Task> tasks_;
  std::map<async::TimerId, std::pair<Duration, async::Task>> timers_;
  async::TimerId last_ = 0;
};

inline Value json(std::string_view text) { return *parse_json(text); }

// Shared by the test and its transports: the answers, and what was sent.
struct ServerScript {
  std::function<std::optional<Reply>(const OutgoingMessage&)> answer;  // nullopt: no answer
  // The result of sending a message that gets no reply, such as an answer to a question; nullopt:
  // pending until it is withdrawn. Empty: accepted.
  std::function<std::optional<Reply>(const OutgoingMessage&)> accept;
  Reply withdrawn{.kind = Reply::Kind::not_sent, .text = "cancelled"};
  std::map<std::int64_t, async::Done<Reply>> unaccepted;  // by ticket
  std::vector<OutgoingMessage> sent;
  std::vector<std::string> methods;
  int opened = 0, stops = 0;
  Transport::Callbacks* callbacks = nullptr;
  std::map<std::int64_t, async::Done<Reply>> open;
  std::function<void(std::string)> lose;
  bool stdio = true;
  // Messages outside of responses are received; otherwise once the test calls `start_listening`.
  bool is_listening = true;
  std::vector<async::Task> listeners;
  ManualLoop loop;

  void start_listening() {
    is_listening = true;
    for (auto& task : std::exchange(listeners, {})) loop.post(std::move(task));
    loop.run();
  }

  // A copy, because the call may replace `lose`.
  void lose_connection(const std::string& why) {
    const auto now = lose;
    now(why);
  }
  std::size_t count(std::string_view method) const {
    return static_cast<std::size_t>(std::ranges::count(methods, method));
  }
  const OutgoingMessage& last(std::string_view method) const {
    for (auto at = sent.rbegin(); at != sent.rend(); ++at) {
      if (at->method == method) return *at;
    }
    AE_CHECK(false, "never sent");
    std::abort();
  }
};

class ScriptedTransport final : public Transport {
 public:
  explicit ScriptedTransport(ServerScript& script) : script_(script) {}
  ~ScriptedTransport() override { ScriptedTransport::close(); }
  void close() override {
    if (std::exchange(closed_, true)) return;
    script_.callbacks = nullptr;
    script_.open.clear();
    script_.unaccepted.clear();
  }
  void stop() override { ++script_.stops; }
  Status open(Callbacks callbacks) override {
    callbacks_ = std::move(callbacks);
    script_.callbacks = &callbacks_;
    ++script_.opened;
    script_.lose = [this](const std::string& why) {
      auto open = std::exchange(script_.open, {});
      for (auto& [id, reply] : open) reply({.kind = Kind::lost, .text = why});
      if (!closed_ && callbacks_.on_close) std::exchange(callbacks_.on_close, nullptr)(why);
    };
    return {};
  }
  void send(OutgoingMessage outgoing, async::Done<Reply> reply) override {
    script_.sent.push_back(outgoing);
    script_.methods.push_back(outgoing.method);
    const std::int64_t id = outgoing.id;
    if (id == 0) return accept_message(outgoing, std::move(reply));
    script_.open.insert_or_assign(id, std::move(reply));
    if (auto answered = script_.answer(outgoing)) {
      script_.loop.post([&script = script_, id, answered = *std::move(answered)]() mutable {
        auto found = script.open.extract(id);
        if (!found.empty()) found.mapped()(std::move(answered));
      });
    }
  }
  void cancel_request(std::int64_t id) override {
    script_.loop.post([&script = script_, id] {
      if (auto unaccepted = script.unaccepted.extract(id); !unaccepted.empty()) {
        unaccepted.mapped()(script.withdrawn);
      }
      auto found = script.open.extract(id);
      if (!found.empty()) found.mapped()({.kind = Kind::lost, .text = "given up"});
    });
  }
  bool listen(async::Task ready) override {
    if (!script_.is_listening) script_.listeners.push_back(std::move(ready));
    return script_.is_listening;
  }
  bool cancel_notifies_server(bool modern) const override { return !script_.stdio && modern; }
  bool is_stdio() const override { return script_.stdio; }

 private:
  void accept_message(const OutgoingMessage& outgoing, async::Done<Reply> reply) {
    auto answered = script_.accept ? script_.accept(outgoing) : Reply{.kind = Reply::Kind::result};
    if (!answered) {
      script_.unaccepted.insert_or_assign(outgoing.ticket, std::move(reply));
      return;
    }
    script_.loop.post([reply = std::move(reply), answered = *std::move(answered)]() mutable {
      reply(std::move(answered));
    });
  }

  ServerScript& script_;
  Callbacks callbacks_;
  bool closed_ = false;
};

inline const Value kTool =
    json(R"({"name":"t","description":"d","inputSchema":{"type":"object"}})");

inline Reply result(std::string_view text) { return {.kind = Kind::result, .value = json(text)}; }
inline Reply error(std::int64_t code, std::string_view data = "null", int status = 0) {
  return {.kind = Kind::error, .value = json(data), .code = code, .text = "no", .status = status};
}
inline Reply tools() {
  return {.kind = Kind::result, .value = Value::object({{"tools", Value::array({kTool})}})};
}
constexpr std::string_view kDone = R"({"content":[{"type":"text","text":"done"}]})";

// A legacy server, and a modern one.
inline std::optional<Reply> legacy_server(const OutgoingMessage& outgoing) {
  if (outgoing.method == "initialize") {
    return result(R"({"protocolVersion":"2025-06-18","capabilities":{"tools":{}}})");
  }
  if (outgoing.method == "tools/list") return tools();
  if (outgoing.method == "tools/call") return result(kDone);
  return error(-32601);
}
inline std::optional<Reply> modern_server(const OutgoingMessage& outgoing) {
  if (outgoing.method == "server/discover") {
    return result(R"({"supportedVersions":["2026-07-28"],"capabilities":{"tools":{}}})");
  }
  return legacy_server(outgoing);
}

struct McpFixture {
  ServerScript script;
  std::shared_ptr<Server> server =
      Server::make([this] { return std::make_unique<ScriptedTransport>(script); }, script.loop, "1",
                   [this](const JobId& job, const std::string& what) {
                     warnings.push_back(job.text + ": " + what);
                   });
  std::vector<Outcome> outcomes;
  std::vector<Value> progress;
  std::vector<std::string> warnings;
  // For the following calls:
  Value inputs;
  Duration answer_timeout{};
  std::optional<std::uint32_t> last_sent_try;  // nullopt: the try before

  explicit McpFixture(std::function<std::optional<Reply>(const OutgoingMessage&)> answer) {
    script.answer = std::move(answer);
  }
  ~McpFixture() {
    server->close();
    script.loop.run();
  }
  void call(std::uint32_t try_no = 1,
            std::string digest = std::string(pin_tool(kTool)->text("digest"))) {
    Call call;
    call.job = JobId{"j"};
    call.tool = "s.t";
    call.args = Value::object({{"a", 1}});
    call.inputs = inputs;
    call.external_key = ExternalKey{"aetheris:j:s:0"};
    call.key = IdempotencyKey{"k"};
    call.invocation = InvocationId{"i"};
    call.try_no = try_no;
    call.last_sent_try = last_sent_try.value_or(try_no - 1);
    call.answer_timeout = answer_timeout;
    call.timeout = 1s;
    call.send_within = 20s;
    call.traceparent = "00-trace";
    call.progress = [this](Value value) { progress.push_back(std::move(value)); };
    Permit permit = testing::PermitForTests::make(call.invocation, try_no);
    server->perform(std::move(permit), std::move(call),
                    {.server = "s", .name = "t", .digest = std::move(digest)},
                    [this](Outcome outcome) { outcomes.push_back(std::move(outcome)); });
    script.loop.run();
  }
  const Outcome& only_outcome() {
    AE_CHECK(outcomes.size() == 1);
    return outcomes.front();
  }
};

}  // namespace ae::tools::mcp
