// Functions: performs calls with functions of this process, on the pool of native functions.
//
// As NativeTool: deadlines, progress, late results. A function that is called outlives the routine
// that made the request. Threads: the loop's.
#pragma once

#include <cstdint>
#include <memory>

#include "async/loop.h"
#include "base/ids.h"
#include "log/outcome.h"
#include "routines/native/function.h"
#include "tools/permit.h"
#include "tools/tool.h"

namespace ae::routines {

class Functions {
 public:
  // Borrows its arguments. `executor`: nullptr: functions run on the loop. `observer`: may be empty.
  Functions(async::Loop& loop, async::SteadyClock& clock, tools::Executor* executor,
            FunctionObserver observer = {});
  // As tools::Tool::perform.
  void perform(std::shared_ptr<const Function> function, tools::Permit permit, tools::Call call,
               async::Done<Outcome> done);
  void abandon(const InvocationId& invocation, std::uint32_t try_no);

 private:
  struct Calls;
  const std::shared_ptr<Calls> calls_;
  tools::NativeTool tool_;
};

}  // namespace ae::routines
