// OutputHub: buffers partial output of models and functions, and streams it to subscribers.
//
// Partial output is never recorded: it is dropped when the final result is durable or the process
// exits, so a partial answer cannot be mistaken for a result. The committed result of a model
// contains the same bytes. Each try of a call has its own buffer, which begins with its first
// piece. Output beyond the limits is not buffered; subscribers read it from the log. Decision:
// 0053-streaming.md.
// Threads: the loop's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/ids.h"
#include "engine/heart/ingest.h"
#include "tools/tool.h"

namespace ae::runtime {

struct PartialOutput {
  StepId step;
  std::string node;
  InvocationId invocation;
  std::uint32_t try_no = 1;
  std::string text;   // so far
  bool full = false;  // a limit was reached: nothing more is appended
};

struct PartialOutputLimits {
  std::size_t text_max = 4u << 20;     // bytes of one buffer
  std::size_t total_max = 64u << 20;   // bytes of all buffers
  std::size_t subscribers_max = 1024;  // concurrent subscribers, over all jobs
  std::size_t outputs_max = 10'000;    // concurrent buffers
};

class OutputHub {
 public:
  explicit OutputHub(PartialOutputLimits limits = {});
  ~OutputHub();
  OutputHub(const OutputHub&) = delete;
  OutputHub& operator=(const OutputHub&) = delete;

  // Appends a piece of output of this try of a call of `node`. The first one, with offset 0, starts
  // the buffer. REQUIRES: the try has no outcome yet.
  void add(const JobId& job, std::string_view node, const engine::SentTry& sent,
           const tools::TextDelta& piece);
  // The outcome is durable: subscribers read it from the log.
  void end(const JobId& job, const InvocationId& invocation, std::uint32_t try_no);
  // This process no longer runs the job.
  void end_all(const JobId& job);

  // The open buffers of the job, in the order in which they began. Shared, because readers may be
  // slower than the output.
  std::vector<std::shared_ptr<const PartialOutput>> outputs_of(const JobId& job) const;
  // Calls `on_delta` after each piece of output of this job until the returned handle is dropped.
  // nullptr: too many subscribers.
  std::shared_ptr<void> subscribe(const JobId& job, std::function<void()> on_delta);

 private:
  struct State;
  std::shared_ptr<State> state_;  // shared with subscribers
};

}  // namespace ae::runtime
