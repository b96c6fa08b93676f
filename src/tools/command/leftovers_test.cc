// Programs whose runtime, supervisor or earlier runtime dies.
#include "tools/command/leftovers.h"

#include <fmt/core.h>

#include <algorithm>

#include "tools/command/command_fixture_test.h"

namespace ae::tools {
namespace {

using namespace command_test;
using namespace std::chrono_literals;

AE_TEST("command/killing the supervisor kills its program with an unknown outcome") {
  const Folder folder;
  CommandFixture w;
  w.make(
      sh(fmt::format("cut -d' ' -f4 /proc/$$/stat >{0}/supervisor; setsid sleep 60 & echo $! "
                     ">{0}/away; echo $$ >{0}/pid; wait; sleep 60",
                     folder.path)));
  w.perform(CommandFixture::call());
  ASSERT_TRUE(w.loop.run_until([&] { return !read_text_file(folder / "pid").empty(); }));
  ASSERT_EQ(::kill(read_pid_file(folder / "supervisor"), SIGKILL), 0);
  const Outcome o = w.wait();
  EXPECT_EQ(o.kind, OutcomeKind::unknown);
  EXPECT_EQ(o.error_code, "killed");
  EXPECT_TRUE(wait_until_gone(read_pid_file(folder / "pid"), 2s));
  EXPECT_TRUE(wait_until_gone(read_pid_file(folder / "away"), 2s));
}

// Forks a process that performs one call and then only waits.
pid_t fork_runtime(const Value& definition) {
  const pid_t pid = ::fork();
  if (pid != 0) return pid;
  ::signal(SIGCHLD, SIG_DFL);
  {
    CommandFixture w;
    w.make(definition);
    w.perform(CommandFixture::call());
    w.loop.run_until([&] { return w.outcome.has_value(); }, 60s);
  }
  ::_exit(0);
}

AE_TEST("command/kill -9 of the runtime kills its programs within two seconds") {
  const Folder folder;
  const pid_t runtime = fork_runtime(sh(fmt::format(
      "trap '' TERM HUP; setsid sh -c 'echo $$ >{0}/away; sleep 60' & echo $$ >{0}/pid; sleep 60",
      folder.path)));
  const pid_t program = read_pid_file(folder / "pid"), away = read_pid_file(folder / "away");
  EXPECT_TRUE(is_alive(program));
  ::kill(runtime, SIGKILL);
  ::waitpid(runtime, nullptr, 0);
  EXPECT_TRUE(wait_until_gone(program, 2s));
  EXPECT_TRUE(wait_until_gone(away, 2s));
}

bool is_tool_process(pid_t pid, const std::vector<ProcessEntry>& processes = all_processes()) {
  return std::ranges::any_of(filter_tool_processes(processes),
                             [pid](const ProcessEntry& tool) { return tool.pid == pid; });
}

AE_TEST("command/programs of another runtime and their descendants are identified as tools") {
  const Folder folder;
  const std::string d = folder.path;
  const pid_t runtime = fork_runtime(
      sh(fmt::format("trap '' TERM HUP; cut -d' ' -f4 /proc/$$/stat >{0}/supervisor; setsid env -i "
                     "sleep 60 & echo $! >{0}/away; echo $$ >{0}/pid; wait",
                     d)));
  const pid_t program = read_pid_file(folder / "pid"), away = read_pid_file(folder / "away");
  for (const pid_t pid : {program, away}) {
    EXPECT_EQ(origin_of(pid), Origin::tool);
    EXPECT_TRUE(is_tool_process(pid));
  }
  EXPECT_EQ(origin_of(runtime), Origin::elsewhere);
  EXPECT_FALSE(is_tool_process(runtime));
  // As if the runtime was killed: its supervisor is a child of process 1 until it has killed its
  // program.
  const pid_t supervisor = read_pid_file(folder / "supervisor");
  std::vector<ProcessEntry> orphaned = all_processes();
  std::erase_if(orphaned, [&](const ProcessEntry& one) { return one.pid == runtime; });
  std::ranges::find(orphaned, supervisor, &ProcessEntry::pid)->parent = 1;
  EXPECT_TRUE(is_tool_process(program, orphaned));
  // As if another process has reused the supervisor's pid.
  std::vector<ProcessEntry> processes = all_processes();
  const auto reused = std::ranges::find(processes, supervisor, &ProcessEntry::pid);
  EXPECT_TRUE(reused != processes.end());
  reused->parent = reused->session = 1;
  reused->start = process_entry(program)->start + 1;
  EXPECT_TRUE(is_tool_process(program, processes));
  // The runtime adopts the orphans of a killed supervisor, and kills them when it continues.
  ::kill(runtime, SIGSTOP);
  ::kill(supervisor, SIGKILL);
  const Duration end = boot_now() + 10s;
  while (process_entry(away)->parent != runtime && boot_now() < end) {
    std::this_thread::sleep_for(5ms);
  }
  EXPECT_EQ(process_entry(away)->parent, runtime);
  EXPECT_EQ(origin_of(away), Origin::tool);
  EXPECT_TRUE(is_tool_process(away));
  ::kill(runtime, SIGCONT);
  EXPECT_TRUE(wait_until_gone(away, 10s));
  ::kill(runtime, SIGKILL);
  ::waitpid(runtime, nullptr, 0);
}

AE_TEST("command/a stopped runtime does not extend the timeout of its programs") {
  const Folder folder;
  const pid_t runtime = ::fork();
  if (runtime == 0) {
    CommandFixture w;
    w.make(sh(fmt::format("echo $$ >{}/pid; sleep 60", folder.path)));
    Call call = CommandFixture::call();
    call.timeout = 500ms;
    w.perform(std::move(call));
    w.loop.run_until([&] { return w.outcome.has_value(); }, 60s);
    if (w.outcome && w.outcome->kind == OutcomeKind::timeout) ::_exit(0);
    std::fprintf(stderr, "instead: %s\n",
                 w.outcome ? w.outcome->error_message.c_str() : "no outcome");
    ::_exit(1);
  }
  const pid_t program = read_pid_file(folder / "pid");
  ::kill(runtime, SIGSTOP);
  EXPECT_TRUE(wait_until_gone(program, 5s));
  ::kill(runtime, SIGCONT);
  int status = -1;
  ::waitpid(runtime, &status, 0);
  EXPECT_EQ(status, 0);
}

// A process group that only SIGKILL ends: {leader, a member, one that left the group}.
struct Group {
  Folder folder;
  pid_t leader = -1, member = -1, away = -1;
  const std::string mark = make_process_mark();
  Group() {
    leader = ::fork();
    if (leader == 0) {
      ::setsid();
      ::clearenv();
      ::setenv("PATH", "/usr/bin:/bin", 1);
      ::setenv(kMarkVariable, mark.c_str(), 1);
      const std::string script = fmt::format(
          "trap '' TERM HUP; env -i sleep 60 & echo $! >{0}/member; setsid sleep 60 & echo $! "
          ">{0}/away; wait",
          folder.path);
      ::execl("/bin/sh", "sh", "-c", script.c_str(), nullptr);
      ::_exit(127);
    }
    member = read_pid_file(folder / "member");
    away = read_pid_file(folder / "away");
    // Wait until setsid has become sleep, with its own environment.
    std::this_thread::sleep_for(20ms);
  }
  ~Group() {
    for (const pid_t pid : {leader, member, away}) {
      if (is_alive(pid)) ::kill(pid, SIGKILL);
    }
    ::waitpid(leader, nullptr, 0);
  }
};

AE_TEST("command/processes left by an earlier runtime are killed by their recorded note") {
  CommandFixture w;
  w.make(sh("true"));
  const Group group;
  const Value note =
      make_in_flight_note(group.leader, process_entry(group.leader)->start, group.mark);
  EXPECT_TRUE(w.tool->kill_leftovers(note).has_value());
  EXPECT_FALSE(is_alive(group.leader));
  EXPECT_FALSE(is_alive(group.member));
  EXPECT_FALSE(is_alive(group.away));
  EXPECT_TRUE(w.tool->kill_leftovers(note).has_value()) << "a second call changes nothing";
}

AE_TEST("command/a reused process id is not killed") {
  const Group group;
  const std::uint64_t start = process_entry(group.leader)->start;
  const Value other = make_in_flight_note(group.leader, start + 1, make_process_mark());
  const Value rebooted =
      make_in_flight_note(group.leader, start, group.mark).with("boot_id", "another boot");
  EXPECT_TRUE(kill_leftovers(other).has_value());
  EXPECT_TRUE(kill_leftovers(rebooted).has_value());
  EXPECT_TRUE(is_alive(group.leader));
  EXPECT_TRUE(is_alive(group.member));
  EXPECT_TRUE(is_alive(group.away));
}

AE_TEST("command/processes that left their group are found by their mark") {
  const Group group;
  EXPECT_TRUE(kill_leftovers(make_in_flight_note(group.leader, 1, group.mark)).has_value());
  EXPECT_FALSE(is_alive(group.leader));
  EXPECT_FALSE(is_alive(group.away));
  EXPECT_TRUE(is_alive(group.member)) << "it has neither the mark nor a known group";
}

AE_TEST("command/an invalid note is rejected") {
  for (const Value& note : {Value(), Value::object({{"pgid", 1}, {"start", 1}, {"boot_id", "x"}}),
                            Value::object({{"pgid", -5}, {"start", 1}, {"boot_id", "x"}})}) {
    auto ended = kill_leftovers(note);
    ASSERT_FALSE(ended.has_value());
    EXPECT_EQ(ended.error().code, Code::input_invalid);
  }
}

AE_TEST("command/a call leaves no process and no open file") {
  const auto files = [] {
    int count = 0;
    for (int fd = 0; fd < 256; ++fd) count += ::fcntl(fd, F_GETFD) >= 0 ? 1 : 0;
    return count;
  };
  CommandFixture w;
  const int before = files();
  for (int i = 0; i < 5; ++i) {
    w.outcome.reset();
    EXPECT_EQ(w.run(sh("echo x")).kind, OutcomeKind::success);
  }
  const Duration end = boot_now() + 5s;  // the last supervisor is reaped right after its report
  while ((files() > before || !running_descendants(::getpid()).empty()) && boot_now() < end) {
    std::this_thread::sleep_for(5ms);
  }
  EXPECT_EQ(files(), before);
  EXPECT_TRUE(running_descendants(::getpid()).empty());
}

}  // namespace
}  // namespace ae::tools
