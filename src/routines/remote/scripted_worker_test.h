// ScriptedWorker: a worker whose messages a test writes.
//
//   RemoteWorld world;
//   ScriptedWorker worker(world);
//   worker.begin();  // hello, welcome
//   world.start();   // a routine; what it does comes to world.client
//   worker.send(R"({'type': 'advance', 'routine': 1, 'delivered': 0})");
//   EXPECT_EQ(worker.next("stop").text("reason"), …);
//
// For tests only. Threads: the test's.
#pragma once

#include <fmt/core.h>

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "json/json.h"
#include "routines/remote/frames.h"
#include "routines/remote/remote_world_test.h"
#include "testing/test.h"

namespace ae::routines::testing {

// A worker, as far as a test scripts it. It numbers and acknowledges frames.
class ScriptedWorker {
 public:
  struct Wire {  // shared with the connection
    std::deque<std::string> texts;
    std::optional<std::pair<std::uint16_t, std::string>> closed;
    std::size_t unsent = 0;
    bool is_cut = false;
  };

  explicit ScriptedWorker(RemoteWorld& world, std::string principal = "key-1",
                          std::string name = "host:1:abc")
      : world_(world), principal_(std::move(principal)), name_(std::move(name)) {
    connect();
  }

  void connect() {
    wire_ = std::make_shared<Wire>();
    id_ = world_.routines->accept(std::make_unique<Connection>(wire_), principal_);
  }
  // A hello without `resume` and `left`; single quotes as in `json`.
  std::string hello(std::string_view more = "") const {
    return fmt::format(
        "{{'type': 'hello', 'protocol': 1, 'sdk': 'test/1', 'worker': '{}', 'agents': [{{'name': "
        "'agent', 'version': '{}'}}], 'tools': [{{'name': 'score'}}], 'capacity': {{'routines': 4, "
        "'calls': 4}}{}}}",
        name_, version, more);
  }
  // Begins a session; the welcome.
  Value begin(std::string_view more = "") {
    sent_ = received_ = 0;
    send(hello(more));
    Value welcome = next("welcome");
    session = welcome.text("session");
    return welcome;
  }
  // Connects again and resumes the session. `forgets`: frames of ours to send again.
  Value resume(std::vector<std::string> again = {}) {
    connect();
    deliver(frame_text(0, 0,
                       text(hello(fmt::format(", 'resume': {{'session': '{}', 'ack': {}}}", session,
                                              received_)))));
    Value welcome = next("welcome");
    for (const std::string& frame : again) deliver(frame);
    return welcome;
  }
  // One frame with these messages. The text that was sent.
  std::string send(std::string_view messages) {
    std::string frame = frame_text(++sent_, received_, text(messages));
    deliver(frame);
    return frame;
  }
  std::string unsent_frame(std::string_view messages) {
    return frame_text(++sent_, received_, text(messages));
  }
  void deliver(std::string_view raw) {
    world_.routines->on_text(id_, raw);
    world_.loop.run_ready();
  }
  // The connection ends, as seen by the server.
  void disconnect(std::uint16_t code = 1006) {
    world_.routines->on_closed(id_, code);
    world_.loop.run_ready();
  }
  // The next message of the server of this type; others before it are passed over. Null: none came.
  Value next(std::string_view type) {
    read();
    while (!messages_.empty()) {
      Value message = std::move(messages_.front());
      messages_.pop_front();
      if (message.text("type") == type) return message;
    }
    return {};
  }
  bool has_messages() {
    read();
    return !messages_.empty();
  }
  unsigned close_code() const { return wire_->closed ? wire_->closed->first : 0; }
  Wire& wire() { return *wire_; }
  void forget_received() { messages_.clear(); }
  void drop_texts() { wire_->texts.clear(); }
  std::uint64_t received() const { return received_; }

  std::string session, version = "1";

 private:
  struct Connection final : WorkerConnection {
    explicit Connection(std::shared_ptr<Wire> w) : wire(std::move(w)) {}
    bool send(std::string_view sent) override {
      if (wire->is_cut) return false;
      wire->texts.emplace_back(sent);
      return true;
    }
    std::size_t unsent() const override { return wire->unsent; }
    void close(std::uint16_t code, std::string_view reason) override {
      wire->closed = {code, std::string(reason)};
    }
    std::shared_ptr<Wire> wire;
  };

  static std::string text(std::string_view messages) {
    std::string json_text(messages);
    for (char& c : json_text) c = c == '\'' ? '"' : c;
    return json_text;
  }
  void read() {
    world_.loop.run_ready();
    while (!wire_->texts.empty()) {
      const auto frame = parse_json(wire_->texts.front());
      wire_->texts.pop_front();
      ASSERT_TRUE(frame.has_value());
      const auto number = static_cast<std::uint64_t>((*frame)["frame"].as_int());
      if (number != 0) {
        if (number <= received_) continue;
        EXPECT_EQ(number, received_ + 1);
        received_ = number;
      }
      for (const Value& message : (*frame)["messages"].items()) messages_.push_back(message);
    }
  }

  RemoteWorld& world_;
  const std::string principal_, name_;
  std::shared_ptr<Wire> wire_;
  RemoteRoutines::ConnectionId id_ = 0;
  std::uint64_t sent_ = 0, received_ = 0;
  std::deque<Value> messages_;
};

}  // namespace ae::routines::testing
