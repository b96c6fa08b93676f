// aetheris_testing: aetheris with the native functions of tests and benchmarks.
//
// AETHERIS_WORKER_LIMITS="HEARTBEAT SILENT RESUME", in milliseconds, shortens the time limits of
// workers (docs/worker-protocol.md), so that a test of a frozen worker need not take half a minute.
#include <chrono>
#include <cstdio>
#include <cstdlib>

#include "app/code_workers.h"
#include "app/toolbox.h"
#include "cli/program.h"
#include "testing/native_functions.h"

namespace {

bool read_worker_limits() {
  const char* const text = std::getenv("AETHERIS_WORKER_LIMITS");
  if (text == nullptr) return true;
  unsigned heartbeat = 0, silent = 0, resume = 0;
  char rest = 0;
  if (std::sscanf(text, "%u %u %u%c", &heartbeat, &silent, &resume, &rest) != 3) return false;
  using std::chrono::milliseconds;
  ae::app::set_worker_limits({.heartbeat = milliseconds(heartbeat),
                              .silent = milliseconds(silent),
                              .resume = milliseconds(resume)});
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  ae::app::set_native_functions(ae::testing::native_functions());
  if (!read_worker_limits()) {
    std::fprintf(stderr, "error: AETHERIS_WORKER_LIMITS has three numbers of milliseconds\n");
    return 2;
  }
  return ae::cli::run_program(argc, argv);
}
