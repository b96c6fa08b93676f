// Fuzzer of what a worker sends: for any texts, the server ends in a valid state, and calls end at
// most once.
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "routines/remote/frames.h"
#include "routines/remote/remote_routines.h"
#include "testing/permit.h"
#include "testing/test_loop.h"

namespace {

using namespace ae;

class NullConnection final : public routines::WorkerConnection {
 public:
  bool send(std::string_view) override { return true; }
  std::size_t unsent() const override { return 0; }
  void close(std::uint16_t, std::string_view) override {}
};

constexpr std::string_view kHello =
    R"({"type":"hello","protocol":1,"sdk":"s","worker":"w","agents":[],"tools":[{"name":"score"}],)"
    R"("capacity":{"routines":1,"calls":1}})";

}  // namespace

// The input: messages of one frame each, separated by newlines; a frame that begins with '!' is
// passed on as it is.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::string_view rest(reinterpret_cast<const char*>(data), size);
  ae::testing::TestLoop loop;
  ae::testing::TestSteadyClock clock(loop);
  ae::testing::TestRandom random;
  routines::RemoteRoutines routines(
      {.loop = loop, .clock = loop, .steady_clock = clock, .random = random});
  const auto id = routines.accept(std::make_unique<NullConnection>(), "key");
  routines.on_text(id, routines::frame_text(1, 0, kHello));
  loop.run_ready();
  int outcomes = 0, late = 0;
  tools::Call call;
  call.job = JobId("job-1");
  call.tool = "score";
  call.invocation = InvocationId("i");
  call.timeout = call.send_within = std::chrono::seconds(10);
  call.on_late_outcome = [&](const Outcome&) { late++; };
  auto permit = ae::testing::PermitForTests::make(call.invocation, 1);
  routines.tool("score")->perform(std::move(permit), std::move(call),
                                  [&](const Outcome&) { outcomes++; });
  loop.run_ready();
  for (std::uint64_t number = 2; !rest.empty(); ++number) {
    const std::string_view line = rest.substr(0, rest.find('\n'));
    rest.remove_prefix(std::min(line.size() + 1, rest.size()));
    routines.on_text(id, line.starts_with('!') ? std::string(line.substr(1))
                                               : routines::frame_text(number, 1, line));
    loop.run_ready();
  }
  loop.advance(std::chrono::minutes(1));
  AE_CHECK(outcomes == 1 && late <= 1 && routines.connections() <= 1);
  routines.close();
  loop.run_ready();
  return 0;
}
