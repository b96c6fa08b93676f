// Fixture for HttpTool: a loop, a client and secrets.
#pragma once

#include <fmt/core.h>

#include <chrono>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "json/json.h"
#include "net/asio_loop.h"
#include "net/http_client.h"
#include "testing/permit.h"
#include "testing/raw_http_server.h"
#include "testing/test.h"
#include "tools/http/http_tool.h"

namespace ae::tools::http_test {

using namespace std::chrono_literals;
using testing::raw_response;
using testing::RawHttpServer;
using Conversation = RawHttpServer::Conversation;

class TestSecrets final : public SecretSource {
 public:
  Result<Secret> get(std::string_view name) override {
    ++lookups;
    if (name == "TOKEN") return Secret("s3cr3t-canary");
    if (name == "BROKEN") return Secret("s3cr3t-canary\r\nX-Evil: 1");
    return fail(Code::secret_missing, "the secret {} is missing", name);
  }
  int lookups = 0;
};

inline Call make_call(Value args = Value::object({})) {
  Call call;
  call.job = JobId("job-1");
  call.tool = "charge";
  call.args = std::move(args);
  call.key = IdempotencyKey(std::string(64, 'a'));
  call.external_key = ExternalKey("aetheris:job-1:0123456789abcdef:0");
  call.invocation = InvocationId("fedcba9876543210");
  call.try_no = 2;
  call.timeout = 5s;
  call.send_within = 5s;
  return call;
}

// A loop, a client and secrets; `call` performs one call of one definition.
struct HttpToolFixture {
  net::AsioLoop loop;
  net::HttpClient client{loop};
  TestSecrets secrets;

  Result<std::unique_ptr<HttpTool>> make(const Value& definition, bool is_read_only = false) {
    return HttpTool::make(definition, {loop, client, secrets, is_read_only});
  }
  Outcome call(const Value& definition, Call call, bool is_read_only = false) {
    auto tool = make(definition, is_read_only);
    if (!tool) {
      ADD_FAILURE() << tool.error().message;
      return {};
    }
    return perform(**tool, std::move(call));
  }
  Outcome perform(HttpTool& tool, Call call) {
    Outcome seen;
    bool returned = false;
    auto permit = testing::PermitForTests::make(call.invocation, call.try_no);
    tool.perform(std::move(permit), std::move(call), [&](Outcome outcome) {
      EXPECT_TRUE(returned);
      seen = std::move(outcome);
      loop.stop();
    });
    returned = true;
    loop.run();
    return seen;
  }
};

inline Value post_tool(const RawHttpServer& server) {
  return Value::object({{"method", "POST"}, {"url", server.url("/charges")}});
}

// As shown in messages.
inline std::string shown_target(const RawHttpServer& server, const std::string& path) {
  return fmt::format("127.0.0.1:{}{}", server.port(), path);
}

}  // namespace ae::tools::http_test
