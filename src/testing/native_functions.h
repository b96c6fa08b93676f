// The native functions of tests and benchmarks.
#pragma once

#include "tools/native/native.h"

namespace ae::testing {

// The built-in functions, and:
//   fill   {bytes} returns {text} of that many bytes
//   fail   {code?, message?, retryable?} a definite failure
//   doubt  {code?, message?, retryable?} an unknown outcome
//   nap    {ms, report_ms?, deaf?} sleeps and reports {done_ms} every report_ms; ends early when the
//          call is cut off, unless `deaf` is true
tools::NativeFunctions native_functions();

}  // namespace ae::testing
