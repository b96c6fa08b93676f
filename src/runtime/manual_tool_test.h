// ManualTool: a tool whose calls wait until the test answers them.
#pragma once

#include <cstdint>
#include <deque>
#include <utility>

#include "async/loop.h"
#include "base/ids.h"
#include "log/outcome.h"
#include "tools/permit.h"
#include "tools/tool.h"

namespace ae::runtime::testing {

struct PendingCall {
  tools::Call call;
  async::Done<Outcome> done;
  bool abandoned = false;
};

class ManualTool final : public tools::Tool {
 public:
  explicit ManualTool(std::deque<PendingCall>& calls) : calls_(calls) {}
  void perform(tools::Permit permit, tools::Call call, async::Done<Outcome> done) override {
    std::move(permit).consume(call.invocation, call.try_no);
    calls_.push_back({std::move(call), std::move(done)});
  }
  void abandon(const InvocationId& invocation, std::uint32_t try_no) override {
    for (PendingCall& waiting : calls_) {
      const bool mine = waiting.call.invocation == invocation && waiting.call.try_no == try_no;
      waiting.abandoned = waiting.abandoned || mine;
    }
  }

 private:
  std::deque<PendingCall>& calls_;
};

}  // namespace ae::runtime::testing
