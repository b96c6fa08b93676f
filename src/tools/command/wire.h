// What the runtime and a supervisor say to each other. Not stored: both ends are one program.
//
// The supervisor finds the program's stdin, stdout and stderr at 0 to 2, the control socket (SOCK_SEQPACKET) at 3, the
// order, a sealed file in memory, at 4: secrets are in nobody's argument list or environment on the way; and at 5 what is
// the program's 3, for its reports.
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
constexpr int kProgramReportsFd = 3;  // the program's; AETHERIS_PROGRESS_FD says so

struct Order {
  std::string program;            // absolute path
  std::vector<std::string> argv;  // argv[0] too
  std::vector<std::string> environment;
  std::string folder;  // empty: stay
  Duration send_by{};  // in boot time; a go that is read later is refused
  Duration timeout{};  // from the start of the program to SIGTERM for its group
  Duration grace{};    // from there to SIGKILL
  Sandbox sandbox;
};

std::string encode(const Order& order);
bool decode(std::string_view bytes, Order& order);

// runtime → supervisor, one byte each; the end of the connection means that the runtime is gone: kill.
enum class Command : char { go = 'g', stop = 's', kill = 'k' };

enum class ReportKind : std::int32_t {
  ready,        // value: process group; start. Nothing of the program runs yet
  late,         // go came after send_by; never started
  not_started,  // value: errno; stage
  exited,       // value: exit code
  signalled,    // value: signal
};
enum class Stage : std::int32_t { none, folder, exec, sandbox };
// Did we end it, and why. `silent` is known to the runtime alone: its supervisor was ordered to.
enum class KillReason : std::int32_t { no, timeout, ordered, silent };

// supervisor → runtime. After anything but `ready` nothing of the call runs any more, unless `stuck`.
struct Report {
  ReportKind kind{};
  std::int32_t value = 0;
  Stage stage = Stage::none;
  KillReason kill_reason = KillReason::no;
  std::uint64_t start = 0;
  std::int32_t stuck = 0;
};

}  // namespace ae::tools
