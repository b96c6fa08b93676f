// What a program can access in each kind of sandbox, on the kernel that runs the test.
#include "tools/command/sandbox.h"

#include <fmt/core.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <fstream>
#include <functional>

#include "json/json.h"
#include "tools/command/command_fixture_test.h"
#include "tools/command/supervisor.h"

namespace ae::tools {
namespace {

using namespace command_test;
using namespace std::chrono_literals;

struct SandboxFixture {
  Folder folder;
  TestLoop loop;
  TestSecrets secrets;

  SandboxFixture() {
    for (const char* name : {"in", "out", "store", "in/store"}) {
      EXPECT_EQ(::mkdir((folder / name).c_str(), 0700), 0);
    }
    for (const char* name : {"in/a", "store/db", "in/store/db", "in/other", "beside"}) {
      std::ofstream(folder / name) << "text of " << name << "\n";
    }
  }
  Value with(const std::string& script, const Value& sandbox) const {
    return sh("cd / ; " + script).with("sandbox", sandbox);
  }
  Value files(const std::string& script) const {
    return with(script, Value::object({{"read", Value::array({folder / "in"})},
                                       {"write", Value::array({folder / "out"})}}));
  }
  Outcome run(const Value& definition, std::vector<std::string> denied_paths = {}) {
    Processes processes(loop, "/proc/self/exe", 0, std::move(denied_paths));
    auto made = CommandTool::make(definition, {loop, processes, secrets});
    EXPECT_TRUE(made.has_value()) << made.error().message;
    if (!made) return {};
    Call call = CommandFixture::call();
    auto permit = testing::PermitForTests::make(call.invocation, call.try_no);
    std::optional<Outcome> outcome;
    (*made)->perform(std::move(permit), std::move(call),
                     [&](Outcome o) { outcome = std::move(o); });
    EXPECT_TRUE(loop.run_until([&] { return outcome.has_value(); }));
    return outcome.value_or(Outcome{});
  }
  std::string text(const Value& definition, std::vector<std::string> denied_paths = {}) {
    const Outcome o = run(definition, std::move(denied_paths));
    EXPECT_EQ(o.kind, OutcomeKind::success) << o.error_message;
    return o.result.is_string() ? o.result.as_string() : canonical_text(o);
  }
  static std::string canonical_text(const Outcome& o) { return o.error_message; }
};

bool can_restrict_files() { return sandbox_support().landlock >= kLandlockForFiles; }

AE_TEST("sandbox/a program can read and write only the listed paths") {
  if (!can_restrict_files()) GTEST_SKIP() << "this kernel has no Landlock of ABI 3";
  SandboxFixture fixture;
  const std::string d = fixture.folder.path;
  EXPECT_EQ(fixture.text(fixture.files(
                fmt::format("cat {0}/in/a; echo x > {0}/out/new && cat {0}/out/new", d))),
            "text of in/a\nx");
  for (const std::string& script :
       {fmt::format("cat {}/beside", d), fmt::format("cat {}/store/db", d), "ls " + d,
        fmt::format("echo x > {}/in/a", d), fmt::format("echo x > {}/in/new", d),
        fmt::format("rm {}/in/a", d), fmt::format("truncate -s 0 {}/beside", d),
        fmt::format("ln {0}/in/a {0}/out/link", d), fmt::format("mv {0}/in/a {0}/out/a", d),
        fmt::format("ln -s {0}/beside {0}/out/s && cat {0}/out/s", d),
        fmt::format("cat /proc/$PPID/environ /proc/$PPID/root{}/beside", d)}) {
    const Outcome o = fixture.run(fixture.files(script));
    EXPECT_EQ(o.kind, OutcomeKind::failure) << script << ": " << canonical(o.result);
    EXPECT_EQ(o.error_message.find("text of"), std::string::npos) << script;
  }
  EXPECT_EQ(read_text_file(d + "/beside"), "text of beside\n");
  EXPECT_EQ(read_text_file(d + "/in/a"), "text of in/a\n");
}

AE_TEST("sandbox/files of the runtime stay inaccessible inside a readable folder") {
  if (!can_restrict_files()) GTEST_SKIP() << "this kernel has no Landlock of ABI 3";
  SandboxFixture fixture;
  const std::string d = fixture.folder.path;
  const std::vector<std::string> denied_paths{d + "/in/store"};
  EXPECT_EQ(fixture.text(fixture.files(fmt::format("cat {}/in/other", d)), denied_paths),
            "text of in/other");
  for (const std::string& script :
       {fmt::format("cat {}/in/store/db", d), fmt::format("ls {}/in/store", d),
        fmt::format("ln -s ../in/store/db {0}/out/s && cat {0}/out/s", d)}) {
    const Outcome o = fixture.run(fixture.files(script), denied_paths);
    EXPECT_EQ(o.kind, OutcomeKind::failure) << script << ": " << canonical(o.result);
  }
}

AE_TEST("sandbox/a folder that contains the store cannot be made writable") {
  if (!can_restrict_files()) GTEST_SKIP() << "this kernel has no Landlock of ABI 3";
  SandboxFixture fixture;
  for (const char* key : {"write", "read"}) {
    for (const std::string& path : {fixture.folder.path, fixture.folder / "store"}) {
      Processes processes(fixture.loop, "/proc/self/exe", 0, {fixture.folder / "store"});
      auto made =
          CommandTool::make(fixture.with("true", Value::object({{key, Value::array({path})}})),
                            {fixture.loop, processes, fixture.secrets});
      const bool may = key == std::string_view("read") && path == fixture.folder.path;
      EXPECT_EQ(made.has_value(), may) << key << " " << path;
      if (!made) {
        EXPECT_TRUE(made.error().message.starts_with("sandbox.")) << made.error().message;
      }
    }
  }
}

AE_TEST("sandbox/without network no address is reachable, including loopback") {
  if (!sandbox_support().network_namespaces) GTEST_SKIP() << "no network namespaces here";
  SandboxFixture fixture;
  EXPECT_EQ(fixture.text(fixture.with("tail -n +3 /proc/net/dev | cut -d: -f1 | tr -d ' '; "
                                      "tail -n +2 /proc/net/route | wc -l",
                                      Value::object({{"network", "none"}}))),
            "lo\n0");
  const Outcome o = fixture.run(
      fixture.with("exec 3<>/dev/null; command -v bash >/dev/null || exit 9; bash -c 'echo > "
                   "/dev/tcp/127.0.0.1/1'",
                   Value::object({{"network", "none"}})));
  EXPECT_EQ(o.kind, OutcomeKind::failure);
  if (o.error_code != "exit_9") {
    EXPECT_NE(o.error_message.find("unreachable"), std::string::npos) << o.error_message;
  }
  EXPECT_EQ(fixture.text(fixture.with("id -u", Value::object({{"network", "none"}}))),
            std::to_string(::geteuid()));
}

AE_TEST("sandbox/memory, file size, open files and CPU time are limited") {
  SandboxFixture fixture;
  const std::string d = fixture.folder.path;
  const auto limits = [](std::string_view key, const Value& value) {
    return Value::object({{std::string(key), value}});
  };
  EXPECT_EQ(fixture.text(fixture.with("ulimit -v", limits("memory", 512 << 20))), "524288");
  EXPECT_EQ(fixture.text(fixture.with("ulimit -n", limits("open_files", 33))), "33");
  EXPECT_EQ(fixture.text(fixture.with("ulimit -t", limits("cpu", "7s"))), "7");
  EXPECT_EQ(fixture.text(fixture.with("ulimit -c", limits("cpu", "7s"))), "0");
  const Outcome large = fixture.run(fixture.with(
      fmt::format("head -c 20000 /dev/zero > {}/out/large", d), limits("file_size", 8192)));
  EXPECT_NE(large.kind, OutcomeKind::success);
  struct stat info{};
  EXPECT_EQ(::stat((d + "/out/large").c_str(), &info), 0);
  EXPECT_LE(info.st_size, 8192);
}

AE_TEST("sandbox/the number of processes is limited") {
  SandboxFixture fixture;
  const Value definition =
      fixture.with("for i in 1 2 3 4 5 6 7 8; do sleep 1 & done; wait; echo all",
                   Value::object({{"processes", 4}}));
  if (::geteuid() == 0) {
    Processes processes(fixture.loop);
    auto made = CommandTool::make(definition, {fixture.loop, processes, fixture.secrets});
    ASSERT_FALSE(made.has_value());
    EXPECT_EQ(made.error().code, Code::unsupported);
    GTEST_SKIP() << "the kernel does not limit the processes of root";
  }
  if (!sandbox_support().user_namespaces) GTEST_SKIP() << "no user namespaces here";
  EXPECT_NE(fixture.run(definition).result, Value("all"));
}

AE_TEST("sandbox/a program cannot signal its supervisor, except with sandbox none") {
  if (sandbox_support().landlock < kLandlockForSignals) GTEST_SKIP() << "Landlock is older here";
  SandboxFixture fixture;
  const std::string script = "kill -0 $PPID 2>/dev/null && echo yes || echo no; sleep 9 & kill $!";
  EXPECT_EQ(fixture.text(sh(script)), "no");
  EXPECT_EQ(fixture.text(fixture.with(script, Value::object({{"open_files", 99}}))), "no");
  EXPECT_EQ(fixture.text(fixture.with(script, "none")), "yes");
}

// The exit code of `attempt` in a process that has entered the sandbox as on a kernel with this
// Landlock ABI; -1: `enter_sandbox` failed.
int exit_code_in_sandbox(const Sandbox& sandbox, int landlock,
                         const std::function<int()>& attempt) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    SandboxSupport support = sandbox_support();
    support.landlock = landlock;
    ::_exit(enter_sandbox(sandbox, "/bin/sh", support) == 0 ? attempt() : 99);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) && WEXITSTATUS(status) != 99 ? WEXITSTATUS(status) : -1;
}

// The errno of PTRACE_SEIZE on a process, or 0.
int trace(pid_t pid) {
  errno = 0;
  if (::ptrace(PTRACE_SEIZE, pid, nullptr, nullptr) != 0) return errno;
  ::ptrace(PTRACE_DETACH, pid, nullptr, nullptr);
  return 0;
}

// A process with a tool's capabilities and no Landlock domain, which waits to be killed.
pid_t fork_program() {
  int ready[2];
  EXPECT_EQ(::pipe(ready), 0);
  const pid_t pid = ::fork();
  if (pid == 0) {
    ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    Sandbox none;
    none.none = true;
    const char done = enter_sandbox(none, "/bin/sh") == 0 ? 'y' : 'n';
    if (::write(ready[1], &done, 1) == 1) ::pause();
    ::_exit(0);
  }
  char done = 'n';
  EXPECT_EQ(::read(ready[0], &done, 1), 1);
  EXPECT_EQ(done, 'y');
  ::close(ready[0]);
  ::close(ready[1]);
  return pid;
}

AE_TEST("sandbox/a program cannot trace processes outside if Landlock supports it") {
  if (sandbox_support().landlock < kLandlockForTracing) GTEST_SKIP() << "Landlock is older here";
  const pid_t outside = fork_program();
  const auto traces = [&] { return trace(outside); };
  Sandbox none;
  none.none = true;
  const int without = exit_code_in_sandbox(none, sandbox_support().landlock, traces);
  if (without != 0) {
    EXPECT_EQ(without, EPERM) << "another kernel module denies it";
  }
  for (int landlock = kLandlockForTracing; landlock <= sandbox_support().landlock; ++landlock) {
    EXPECT_EQ(exit_code_in_sandbox({}, landlock, traces), EPERM) << landlock;
    const auto traces_its_own = [] {
      const pid_t own = ::fork();
      if (own == 0) ::_exit((::pause(), 0));
      const int error = trace(own);
      ::kill(own, SIGKILL);
      return error;
    };
    EXPECT_EQ(exit_code_in_sandbox({}, landlock, traces_its_own), 0) << landlock;
  }
  ::kill(outside, SIGKILL);
  ::waitpid(outside, nullptr, 0);
}

AE_TEST("sandbox/the restriction of tracing does not restrict files") {
  SandboxFixture fixture;
  const std::string d = fixture.folder.path;
  const std::string script = fmt::format(
      "cd {} && cat in/a >/dev/null && echo x > out/new && ln in/a out/link && mv in/other "
      "out/other && mkdir -p out/deep && mv out/deep in/deep && mkfifo out/pipe && ln -s in/a "
      "out/s && mv out/s in/s && rm out/link && truncate -s 1 out/new && chmod 600 out/new && rm "
      "-r in/deep && mv in/s out/s && rm out/s out/new out/pipe && mv out/other in/other",
      d);
  for (int landlock = 0; landlock <= sandbox_support().landlock; ++landlock) {
    const int code = exit_code_in_sandbox({}, landlock, [&] {
      ::execl("/bin/sh", "sh", "-c", script.c_str(), nullptr);
      return 98;
    });
    EXPECT_EQ(code, 0) << landlock;
  }
}

AE_TEST("sandbox/a program run as root keeps file capabilities and no process capabilities") {
  if (::geteuid() != 0) GTEST_SKIP() << "this tests a server that runs as root";
  SandboxFixture fixture;
  const auto capabilities = [&](const Value& sandbox) {
    const std::string text = fixture.text(
        fixture.with("grep -E 'Cap(Inh|Prm|Eff|Bnd|Amb)' /proc/self/status | cut -f2", sandbox));
    std::uint64_t all = 0;
    for (std::size_t at = 0; at < text.size(); at += 17) {
      all |= std::stoull(text.substr(at, 16), nullptr, 16);
    }
    return all;
  };
  // chown, dac_override, fowner, fsetid, kill, setgid, setuid, net_bind_service
  constexpr std::uint64_t kKept = 0x4fb;
  for (const Value& sandbox : {Value(), Value("none"), Value::object({{"open_files", 99}})}) {
    EXPECT_EQ(capabilities(sandbox) & ~kKept, 0u) << canonical(sandbox);
  }
  const std::string file = fixture.folder / "of_another";
  std::ofstream(file) << "text";
  if (::chown(file.c_str(), 65534, 65534) == 0 && ::chmod(file.c_str(), 0600) == 0) {
    EXPECT_EQ(fixture.text(sh("cat " + file)), "text");
  }
  const pid_t outside = ::fork();
  if (outside == 0) ::_exit((::pause(), 0));
  const std::string of_it = fmt::format("/proc/{}", outside);
  EXPECT_EQ(fixture.text(
                fixture.with(fmt::format("for f in environ maps; do cat {0}/$f >/dev/null 2>&1 && "
                                         "echo yes || echo no; done; readlink {0}/fd/0 || echo no",
                                         of_it),
                             "none")),
            "no\nno\nno");
  ::kill(outside, SIGKILL);
  ::waitpid(outside, nullptr, 0);
}

AE_TEST("sandbox/an invalid sandbox is rejected with the path of the field") {
  SandboxFixture fixture;
  const auto rejection = [&](const Value& sandbox) {
    auto read = read_sandbox(sandbox, fixture.folder.path);
    return read ? std::string() : read.error().message;
  };
  EXPECT_TRUE(rejection("some").starts_with("sandbox: "));
  EXPECT_TRUE(rejection(Value::object({{"read", "x"}})).starts_with("sandbox.read: "));
  EXPECT_TRUE(rejection(Value::object({{"read", Value::array({"not/there"})}}))
                  .starts_with("sandbox.read: "));
  EXPECT_TRUE(rejection(Value::object({{"network", "some"}})).starts_with("sandbox.network: "));
  EXPECT_TRUE(rejection(Value::object({{"memory", 0}})).starts_with("sandbox.memory: "));
  EXPECT_TRUE(rejection(Value::object({{"cpu", "1ms"}})).starts_with("sandbox.cpu: "));
  EXPECT_EQ(rejection("none"), "");
  EXPECT_EQ(rejection(Value::object({})), "");
}

}  // namespace
}  // namespace ae::tools
