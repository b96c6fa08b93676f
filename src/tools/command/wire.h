// The protocol between the runtime and a supervisor. Not stored: both ends are the same program.
//
// The supervisor inherits these descriptors: 0 to 2 are the program's stdin, stdout and stderr; 3
// is the control socket (SOCK_SEQPACKET); 4 is the order, a sealed memory file, so that no secret
// appears in an argument list or an environment on the way; 5 is the progress channel, which
// becomes the program's 3.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/time.h"
#include "tools/command/sandbox.h"

namespace ae::tools {

constexpr int kControlFd = 3;
constexpr int kOrderFd = 4;
constexpr int kReportsFd = 5;
constexpr int kProgramReportsFd = 3;  // in the program, as AETHERIS_PROGRESS_FD

struct Order {
  std::string program;            // absolute path
  std::vector<std::string> argv;  // including argv[0]
  std::vector<std::string> environment;
  std::string folder;  // working directory; empty: unchanged
  Duration send_by{};  // boot time; a go that is read later is rejected
  Duration timeout{};  // from the start of the program to SIGTERM for its group
  Duration grace{};    // from SIGTERM to SIGKILL
  Sandbox sandbox;
};

std::string encode(const Order& order);
bool decode(std::string_view bytes, Order& order);

// runtime → supervisor, one byte each. A closed connection means that the runtime is gone: kill.
enum class Command : char { go = 'g', stop = 's', kill = 'k' };

enum class ReportKind : std::int32_t {
  ready,        // value: process group; start. The program does not run yet
  late,         // go arrived after send_by; never started
  not_started,  // value: errno; stage
  exited,       // value: exit code
  signalled,    // value: signal
};
enum class Stage : std::int32_t { none, folder, exec, sandbox };
// Whether and why we killed it. Only the runtime knows `silent`: the supervisor sees `ordered`.
enum class KillReason : std::int32_t { no, timeout, ordered, silent };

// supervisor → runtime. After any report except `ready` no process of the call is running, unless
// `stuck`.
struct Report {
  ReportKind kind{};
  std::int32_t value = 0;
  Stage stage = Stage::none;
  KillReason kill_reason = KillReason::no;
  std::uint64_t start = 0;
  std::int32_t stuck = 0;
};

}  // namespace ae::tools
