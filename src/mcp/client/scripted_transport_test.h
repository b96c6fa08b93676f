// ScriptedTransport: a Transport whose answers the test chooses, on a loop with manual timers.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "async/loop.h"
#include "base/error.h"
#include "mcp/client/server.h"

namespace ae::mcp::client {

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

}  // namespace ae::mcp::client
