// Sayings: what answers of models say while they are still coming, for whoever looks on.
//
// No part of the record: it is gone when the answer is durable, and with the process. So nobody can take half an answer for
// one; what was said is then in the log, the same bytes. A try of a call is one saying, and begins at 0: a later try is
// another one. Within limits: what goes beyond them is not kept, and is read in the log. Decision: 0053-streaming.md.
// Threads: the loop's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/ids.h"
#include "tools/tool.h"

namespace ae::runtime {

struct PartialOutput {
  StepId step;
  std::string node;
  InvocationId invocation;
  std::uint32_t try_no = 1;
  std::string text;   // so far
  bool full = false;  // a limit was reached: nothing is added any more
};

struct PartialOutputLimits {
  std::size_t text_max = 4u << 20;   // bytes of one saying
  std::size_t all_max = 64u << 20;   // bytes of all of them
  std::size_t listeners_max = 1024;  // at once, of all jobs
  std::size_t outputs_max = 10'000;  // open at once
};

class OutputHub {
 public:
  explicit OutputHub(PartialOutputLimits limits = {});
  ~OutputHub();
  OutputHub(const OutputHub&) = delete;
  OutputHub& operator=(const OutputHub&) = delete;

  // A call is about to be made: what it says is to be given to this. Does nothing once the saying has ended, and may
  // outlive us. `output.text` is empty.
  std::move_only_function<void(tools::TextDelta)> begin(const JobId& job, PartialOutput output);
  // Its end is durable: who listens reads it in the log.
  void end(const JobId& job, const InvocationId& invocation, std::uint32_t try_no);
  // The job is no longer held here.
  void end_all(const JobId& job);

  // What is being said, in the order in which it began. Shared with readers that are slower than what they read.
  std::vector<std::shared_ptr<const PartialOutput>> of(const JobId& job) const;
  // Calls `on_delta` after each piece of this job, until what it gives is dropped. nullptr: too many listen.
  std::shared_ptr<void> listen(const JobId& job, std::function<void()> on_delta);

 private:
  struct State;
  std::shared_ptr<State> state_;  // shared with calls in flight and with those who listen
};

}  // namespace ae::runtime
