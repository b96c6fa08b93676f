// TraceContext: the W3C's headers `traceparent` and `tracestate` (Trace Context, level 2), in and out.
//
// A job carries the context of whoever asked for it, or one that follows from its id. Each try of a call has a span of its
// own, which follows from the job, the call and the try: the same again after a crash, and never a part of what is called.
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
  std::string parent_id;   // 16 hex digits: the span of whoever sent it
  std::uint8_t flags = 0;  // 1 = sampled, 2 = the trace id is random
  std::string state;       // tracestate; "" = none
};

// nullopt: malformed, and to be treated as if it were not there. A malformed tracestate is left out alone.
std::optional<TraceContext> trace_context(std::string_view traceparent,
                                          std::string_view tracestate);
// 00-TRACE-SPAN-FLAGS
std::string traceparent(std::string_view trace_id, std::string_view span_id, std::uint8_t flags);

// Of a job that was asked for without a context.
std::string trace_id_of(const JobId& job);
// The context that a job's calls go on with: that of whoever asked for it, or its own (then without a parent).
TraceContext trace_of(const JobId& job, std::string_view traceparent, std::string_view tracestate);
// The span of a try, and that of the job itself.
std::string span_id_of(const JobId& job, const InvocationId& invocation, std::uint32_t try_no);
std::string span_id_of(const JobId& job);

}  // namespace ae
