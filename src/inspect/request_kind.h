// RequestKind: the `kind` of an open request (inspect/requests_view.h). The first four are listed
// as approvals, too.
//
// Threads: values.
#pragma once

#include <cstdint>
#include <string_view>

namespace ae::engine {

enum class RequestKind : std::uint8_t {
  call,             // approval of a call
  wait,             // a human wait
  question,         // of a tool, during its call
  confirmation,     // a recorded change differs
  unknown_outcome,  // a call may have taken effect
  budget            // used up
};
constexpr std::string_view to_text(RequestKind kind) {
  switch (kind) {
    case RequestKind::call:
      return "call";
    case RequestKind::wait:
      return "wait";
    case RequestKind::question:
      return "question";
    case RequestKind::confirmation:
      return "confirmation";
    case RequestKind::unknown_outcome:
      return "unknown_outcome";
    case RequestKind::budget:
      return "budget";
  }
  return {};
}

}  // namespace ae::engine
