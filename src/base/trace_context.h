// TraceContext: the W3C headers `traceparent` and `tracestate` (Trace Context, level 2), received
// and sent.
//
// A job has the context of the request that created it, or one derived from its id. Each try of a
// call has its own span id, derived from the job, the call and the try: it is the same again after
// a crash, and is not part of the call's request or its hash.
// Threads: pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/ids.h"

namespace ae {

struct TraceContext {
  std::string trace_id;    // 32 hex digits, lower case, not all zeros
  std::string parent_id;   // 16 hex digits: the span of the sender
  std::uint8_t flags = 0;  // 1 = sampled, 2 = the trace id is random
  std::string state;       // tracestate; "" = none
};

// nullopt: malformed, and to be ignored. A malformed tracestate alone is dropped; the rest is kept.
std::optional<TraceContext> trace_context(std::string_view traceparent,
                                          std::string_view tracestate);
// 00-TRACE-SPAN-FLAGS
std::string traceparent(std::string_view trace_id, std::string_view span_id, std::uint8_t flags);

// The trace id of a job that was created without a context.
std::string trace_id_of(const JobId& job);
// The context that a job's calls propagate: that of the request that created the job, or the job's
// own (without a parent).
TraceContext trace_of(const JobId& job, std::string_view traceparent, std::string_view tracestate);
// The span of a try, and the span of the job itself.
std::string span_id_of(const JobId& job, const InvocationId& invocation, std::uint32_t try_no);
std::string span_id_of(const JobId& job);

}  // namespace ae
