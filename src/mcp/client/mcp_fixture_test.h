// McpFixture: a Server with a scripted transport, and the answers of a legacy and a modern server.
#pragma once

#include <fmt/core.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "json/json.h"
#include "mcp/client/listing.h"
#include "mcp/client/scripted_transport_test.h"
#include "mcp/client/server.h"
#include "testing/permit.h"
#include "testing/test.h"

namespace ae::mcp::client {

using namespace std::chrono_literals;

inline Value json(std::string_view text) { return *parse_json(text); }

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
                     warnings.push_back(fmt::format("{}: {}", job.text, what));
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
    tools::Call call;
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
    call.trace = [] { return tools::TraceHeaders{.traceparent = "00-trace", .tracestate = {}}; };
    call.progress = [this](Value value) { progress.push_back(std::move(value)); };
    tools::Permit permit = testing::PermitForTests::make(call.invocation, try_no);
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

}  // namespace ae::mcp::client
