// CommandTool with real programs. The test program is its own supervisor: see become_supervisor.
#include "tools/command/command_tool.h"

#include <fmt/core.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <filesystem>
#include <iterator>
#include <vector>

#include "base/utf8.h"
#include "json/json.h"
#include "tools/command/command_fixture_test.h"
#include "tools/command/supervisor.h"
#include "tools/output.h"

namespace ae::tools {
namespace {

using namespace command_test;
using namespace std::chrono_literals;

// Runs before main, where src/cli calls is_supervisor first.
[[gnu::constructor]] void become_supervisor(int argc, char** argv) {
  if (is_supervisor(argc, argv)) ::_exit(supervise_main(argc, argv));
}

std::string definition_error_of(const Value& definition) {
  TestLoop loop;
  TestSecrets secrets;
  Processes processes(loop);
  auto made = CommandTool::make(definition, {loop, processes, secrets});
  if (made) return "";
  EXPECT_EQ(made.error().code, Code::plan_invalid);
  return made.error().message;
}

// ---- results

AE_TEST("command/exit code 0 is success with stdout as the result, without its last newline") {
  const Outcome o = CommandFixture().run(sh("echo hello; echo; exit 0"));
  EXPECT_EQ(o.kind, OutcomeKind::success) << o.error_message;
  EXPECT_EQ(o.result, Value("hello\n"));
  EXPECT_GT(o.elapsed, 0us);
}

AE_TEST("command/arguments are sent to stdin as canonical JSON") {
  const Outcome o = CommandFixture().run(sh("cat"), Value::object({{"z", 1}, {"a", "ü"}}));
  EXPECT_EQ(o.result, Value(R"({"a":"ü","z":1})"));
}

AE_TEST("command/preview() shows the command as it would run, with secrets by name") {
  TestLoop loop;
  TestSecrets secrets;
  secrets.values["TOKEN"] = "s3cr3t-canary";
  Processes processes(loop);
  auto tool =
      CommandTool::make(Value::object({{"command", Value::array({"echo", "to ${ .args.to }"})},
                                       {"env", Value::object({{"KEY", "secret:TOKEN"}})}}),
                        {loop, processes, secrets});
  ASSERT_TRUE(tool) << tool.error().message;
  Call call;
  call.args = Value::object({{"to", "Ada; rm -rf"}});
  const auto shown = (*tool)->preview(call);
  ASSERT_TRUE(shown) << shown.error().message;
  EXPECT_EQ(canonical((*shown)["argv"]), R"(["echo","to Ada; rm -rf"])");
  EXPECT_EQ(shown->text("stdin"), R"({"to":"Ada; rm -rf"})");
  EXPECT_EQ(canonical((*shown)["env"]), R"({"KEY":"secret:TOKEN"})");
}

AE_TEST("command/an output declared as JSON is parsed") {
  const Value json = sh("cat").with("output", "json");
  const Value args = Value::object({{"n", 1.5}, {"list", Value::array({1, nullptr})}});
  EXPECT_EQ(CommandFixture().run(json, args).result, args);
  const Value big = sh("echo '[12345678901234567890, 1]'").with("output", "json");
  EXPECT_EQ(canonical(CommandFixture().run(big.with("numbers", "string")).result),
            R"(["12345678901234567890",1])");
  const Outcome invalid = CommandFixture().run(big);
  EXPECT_EQ(invalid.kind, OutcomeKind::success);
  EXPECT_TRUE(invalid.invalid.has_value());
}

AE_TEST("command/an invalid output is a success with a record of it") {
  const Outcome json = CommandFixture().run(sh("printf '{\"a\":NaN}'").with("output", "json"));
  EXPECT_EQ(json.kind, OutcomeKind::success);
  ASSERT_TRUE(json.invalid.has_value());
  EXPECT_EQ(json.invalid->text("head"), "{\"a\":NaN}");
  EXPECT_TRUE(CommandFixture().run(sh("").with("output", "json")).invalid.has_value());
  const Outcome text = CommandFixture().run(sh(R"(printf 'a\377\000b')"));
  ASSERT_TRUE(text.invalid.has_value());
  EXPECT_EQ(text.invalid->text("reason"), "the output is not UTF-8");
  EXPECT_EQ(text.invalid->text("head"), "a\\xff\\x00b");
  EXPECT_EQ((*text.invalid)["size"].as_int(), 4);
}

AE_TEST("command/a nonzero exit code is a definite failure with the end of stderr") {
  const Outcome o = CommandFixture().run(sh("echo no money >&2; exit 3"));
  EXPECT_EQ(o.kind, OutcomeKind::failure);
  EXPECT_TRUE(o.definite);
  EXPECT_FALSE(o.retryable);
  EXPECT_EQ(o.error_code, "exit_3");
  EXPECT_EQ(o.error_message, "/bin/sh exited with code 3: no money");
  EXPECT_TRUE(CommandFixture().run(sh("exit 75")).retryable);
}

AE_TEST("command/the end of a long stderr is kept") {
  const Outcome o =
      CommandFixture().run(sh("yes é | head -c 300000 >&2; echo the end >&2; exit 1"));
  EXPECT_EQ(o.error_code, "exit_1");
  EXPECT_LE(o.error_message.size(), 4096u + 64u);
  EXPECT_TRUE(o.error_message.ends_with("the end"));
  EXPECT_TRUE(is_utf8(o.error_message));
  EXPECT_EQ(o.error_message.find('\\'), std::string::npos) << "a split character";
}

AE_TEST("command/a program killed by a signal has an unknown outcome") {
  const Outcome o = CommandFixture().run(sh("kill -SEGV $$"));
  EXPECT_EQ(o.kind, OutcomeKind::unknown);
  EXPECT_FALSE(o.definite);
  EXPECT_EQ(o.error_code, "signal_11");
}

AE_TEST("command/a program that cannot be started is a definite failure") {
  const Folder folder;
  const std::string path = folder / "tool";
  const auto write_tool = [&](const char* text) {
    std::ofstream(path) << text;
    ::chmod(path.c_str(), 0755);
  };
  write_tool("#!/no/such/interpreter\n");
  const Value definition = Value::object({{"command", Value::array({path})}});
  CommandFixture w;
  const Outcome o = w.run(definition);
  EXPECT_EQ(o.kind, OutcomeKind::failure);
  EXPECT_TRUE(o.definite);
  EXPECT_EQ(o.error_code, "spawn_failed");
  EXPECT_NE(o.error_message.find("No such file"), std::string::npos) << o.error_message;
  write_tool("no shebang, no ELF: there is no shell to guess what this is\n");
  EXPECT_EQ(CommandFixture().run(definition).error_code, "spawn_failed");

  CommandFixture gone;
  gone.make(definition.with("cwd", folder.path));
  ASSERT_EQ(std::rename(folder.path.c_str(), (folder.path + "-away").c_str()), 0);
  gone.perform(CommandFixture::call());
  const Outcome nowhere = gone.wait();
  ASSERT_EQ(std::rename((folder.path + "-away").c_str(), folder.path.c_str()), 0);
  EXPECT_EQ(nowhere.error_code, "spawn_failed");
  EXPECT_NE(nowhere.error_message.find("its folder"), std::string::npos) << nowhere.error_message;
}

AE_TEST("command/a supervisor that cannot be started is a definite failure") {
  TestLoop loop;
  TestSecrets secrets;
  Processes processes(loop, "/no/such/aetheris");
  auto tool = CommandTool::make(sh("true"), {loop, processes, secrets});
  std::optional<Outcome> outcome;
  Call call = CommandFixture::call();
  auto permit = testing::PermitForTests::make(call.invocation, call.try_no);
  (*tool)->perform(std::move(permit), std::move(call), [&](Outcome o) { outcome = std::move(o); });
  ASSERT_TRUE(loop.run_until([&] { return outcome.has_value(); }));
  EXPECT_EQ(outcome->error_code, "spawn_failed");
  EXPECT_TRUE(outcome->definite);
}

AE_TEST("command/a program that lacks file descriptors to start is not_sent and retryable") {
  const auto open_files = [] {
    return std::distance(std::filesystem::directory_iterator("/proc/self/fd"), {});
  };
  CommandFixture w;
  const auto idle = open_files();
  EXPECT_EQ(w.run(sh("echo 1")).result, Value("1"));
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  // With no free descriptor, and with too few.
  for (const std::size_t free : {0u, 3u, 9u}) {
    const rlimit few{256, before.rlim_max};
    // Wait until the call before has released its descriptors.
    ASSERT_TRUE(w.loop.run_until([&] { return open_files() <= idle; }))
        << open_files() << " not " << idle;
    ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &few), 0);
    std::vector<int> taken;
    for (int fd = ::dup(2); fd >= 0; fd = ::dup(2)) taken.push_back(fd);
    for (std::size_t i = 0; i < free; ++i) {
      ::close(taken.back());
      taken.pop_back();
    }
    w.outcome.reset();
    w.perform(CommandFixture::call());
    const Outcome o = w.wait();
    for (const int fd : taken) ::close(fd);
    ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
    EXPECT_EQ(o.error_code, "not_sent") << o.error_message;
    EXPECT_TRUE(o.definite && o.retryable);
    EXPECT_NE(o.error_message.find("Too many open files"), std::string::npos) << o.error_message;
  }
  w.outcome.reset();
  w.perform(CommandFixture::call());
  EXPECT_EQ(w.wait().result, Value("1"));
}

AE_TEST("command/a program has its own limit of open files") {
  TestLoop loop;
  TestSecrets secrets;
  Processes processes(loop, "/proc/self/exe", 64);
  auto tool = CommandTool::make(sh("ulimit -Sn"), {loop, processes, secrets});
  std::optional<Outcome> outcome;
  Call call = CommandFixture::call();
  auto permit = testing::PermitForTests::make(call.invocation, call.try_no);
  (*tool)->perform(std::move(permit), std::move(call), [&](Outcome o) { outcome = std::move(o); });
  ASSERT_TRUE(loop.run_until([&] { return outcome.has_value(); }));
  EXPECT_EQ(outcome->result, Value("64")) << outcome->error_message;
}

// ---- inputs

AE_TEST("command/the value of an expression is one verbatim argument") {
  const Value definition = Value::object(
      {{"command", Value::array({"/usr/bin/printf", "<%s>", "${ .args.a }", "--x=${ .args.b }",
                                 "${ .args.n }", "${ .call.try }", "$${ literal", "$(id) `id`"})}});
  const Value args = Value::object({{"a", "two words\nand a line; $(id) 'q' \"p\" *"},
                                    {"b", ""},
                                    {"n", Value::object({{"k", 1}})}});
  EXPECT_EQ(CommandFixture().run(definition, args).result,
            Value("<two words\nand a line; $(id) 'q' \"p\" *><--x=><{\"k\":1}><1><${ literal>"
                  "<$(id) `id`>"));
}

AE_TEST("command/a null value or a NUL byte in an argument is rejected") {
  const Value definition =
      Value::object({{"command", Value::array({"/bin/echo", "${ .args.a }"})}});
  for (const Value& bad : {Value(nullptr), Value(std::string("a\0b", 3))}) {
    const Outcome o = CommandFixture().run(definition, Value::object({{"a", bad}}));
    EXPECT_EQ(o.kind, OutcomeKind::failure);
    EXPECT_TRUE(o.definite);
    EXPECT_EQ(o.error_code, "request_invalid");
    EXPECT_TRUE(o.error_message.starts_with("command[1]: ")) << o.error_message;
  }
}

AE_TEST("command/a program receives the allowed environment variables and no others") {
  ::setenv("AE_T_ALLOWED", "yes", 1);
  ::setenv("AE_T_OTHER", "no", 1);
  ::setenv("AETHERIS_STORE", "no", 1);
  const Value definition =
      Value::object({{"command", Value::array({"/usr/bin/env"})},
                     {"env_allow", Value::array({"AE_T_ALLOWED", "AE_T_ABSENT"})},
                     {"env", Value::object({{"ORDER", "no. ${ .args.id }"}, {"LANG", "C"}})}});
  const Outcome o = CommandFixture().run(definition, Value::object({{"id", 7}}));
  ::unsetenv("AETHERIS_STORE");
  ASSERT_TRUE(o.result.is_string()) << o.error_message;
  std::map<std::string, std::string> seen;
  std::istringstream lines(o.result.as_string());
  for (std::string line; std::getline(lines, line);) {
    const std::size_t equals = line.find('=');
    EXPECT_TRUE(seen.emplace(line.substr(0, equals), line.substr(equals + 1)).second) << line;
  }
  for (const char* name : {"PATH", "HOME", "LC_ALL", "TZ", "TMPDIR"}) seen.erase(name);
  EXPECT_EQ(seen["AETHERIS_MARK"].size(), 32u);
  seen.erase("AETHERIS_MARK");
  const std::map<std::string, std::string> wanted{
      {"AE_T_ALLOWED", "yes"},
      {"LANG", "C"},
      {"ORDER", "no. 7"},
      {"AETHERIS_IDEMPOTENCY_KEY", "aetheris:job-1:step:attempt"},
      {"AETHERIS_EXECUTION_KEY", std::string(64, 'e')},
      {"AETHERIS_INVOCATION_ID", "0123456789abcdef"},
      {"AETHERIS_TRY", "1"},
      {"AETHERIS_JOB_ID", "job-1"},
      {"AETHERIS_PROGRESS_FD", "3"}};
  EXPECT_EQ(seen, wanted);
}

AE_TEST(
    "command/a program starts with four files, its own session, no core and no new privileges") {
  const int leak = ::open("/dev/null", O_RDONLY);  // intentionally without O_CLOEXEC
  const Outcome files = CommandFixture().run(sh("ls -l /proc/self/fd | awk '{print $9}' | xargs"));
  EXPECT_EQ(files.result, Value("0 1 2 3 4")) << "4 is the folder that ls itself reads";
  ::close(leak);
  const Outcome status = CommandFixture().run(
      sh("grep NoNewPrivs /proc/self/status | cut -f2; ulimit -c; cut -d' ' -f5,6 /proc/$$/stat; "
         "echo $$ $$; grep -E 'Sig(Blk|Ign)' /proc/self/status | cut -f2"));
  std::istringstream lines(status.result.as_string());
  std::string privileges, core, group, self, blocked, ignored;
  for (std::string* line : {&privileges, &core, &group, &self, &blocked, &ignored}) {
    std::getline(lines, *line);
  }
  EXPECT_EQ(privileges, "1");
  EXPECT_EQ(core, "0");
  EXPECT_EQ(group, self) << "its group and session are its own";
  EXPECT_EQ(blocked, "0000000000000000");
  // All except the two that glibc reserves.
  EXPECT_EQ(std::stoull(ignored, nullptr, 16) & 0x7fffffff, 0u) << ignored;
}

AE_TEST("command/a program runs in the folder cwd") {
  const Folder folder;
  EXPECT_EQ(CommandFixture().run(sh("pwd").with("cwd", folder.path)).result, Value(folder.path));
}

AE_TEST("command/a secret is passed in the environment and recorded nowhere") {
  CommandFixture w;
  w.secrets.values["TOKEN"] = "hunter22-token";
  const Value definition =
      sh("echo \"bad token $T\" >&2; printf %s \"$T\" | base64 >&2; tr '\\0' ' ' </proc/$$/cmdline "
         ">&2; exit 4")
          .with("env", Value::object({{"T", "Bearer secret:TOKEN"}}));
  const Outcome o = w.run(definition);
  EXPECT_EQ(o.error_code, "exit_4");
  EXPECT_NE(o.error_message.find("bad token Bearer [secret TOKEN]"), std::string::npos)
      << o.error_message;
  EXPECT_EQ(o.error_message.find("hunter22"), std::string::npos) << o.error_message;

  CommandFixture echo_fixture;
  echo_fixture.secrets.values["TOKEN"] = "hunter22-token";
  EXPECT_EQ(
      echo_fixture.run(sh("echo $T").with("env", Value::object({{"T", "secret:TOKEN"}}))).result,
      Value("[secret TOKEN]"));
}

AE_TEST("command/a secret reference in an argument is not resolved") {
  CommandFixture w;
  w.secrets.values["TOKEN"] = "hunter22-token";
  const Value definition =
      sh("printf %s \"$T\"").with("env", Value::object({{"T", "${ .args.t }"}}));
  EXPECT_EQ(w.run(definition, Value::object({{"t", "secret:TOKEN"}})).result,
            Value("secret:TOKEN"));
}

AE_TEST("command/a missing secret is a definite failure before the program starts") {
  const Outcome o =
      CommandFixture().run(sh("true").with("env", Value::object({{"T", "secret:NONE"}})));
  EXPECT_EQ(o.kind, OutcomeKind::failure);
  EXPECT_TRUE(o.definite);
  EXPECT_EQ(o.error_code, "secret_missing");
}

AE_TEST("command/an invalid definition is rejected when the tool is created") {
  const auto command = [](std::vector<Value> words) {
    return Value::object({{"command", Value::array(std::move(words))}});
  };
  EXPECT_EQ(definition_error_of(command({"true"})), "");
  EXPECT_NE(definition_error_of(command({})).find("must be a list"), std::string::npos);
  EXPECT_NE(definition_error_of(command({"no-such-program-at-all"})).find("in PATH"),
            std::string::npos);
  EXPECT_NE(definition_error_of(command({"/etc/passwd"})).find("cannot be executed"),
            std::string::npos);
  EXPECT_NE(definition_error_of(command({"${ .args.program }"})).find("literal"),
            std::string::npos);
  EXPECT_NE(definition_error_of(command({"true", "secret:TOKEN"})).find("`env`"),
            std::string::npos);
  EXPECT_NE(definition_error_of(command({"true", "${ .input.x }"})).find(".input is not available"),
            std::string::npos);
  EXPECT_NE(definition_error_of(command({"true", "${ .steps.x }"})).find(".steps is not available"),
            std::string::npos);
  EXPECT_NE(definition_error_of(command({"true", 5})).find("quote it"), std::string::npos);
  const Value fine = command({"true"});
  EXPECT_NE(definition_error_of(fine.with("output", "xml")), "");
  EXPECT_NE(definition_error_of(fine.with("numbers", "string")), "");
  EXPECT_NE(definition_error_of(fine.with("output_max", -1)), "");
  EXPECT_NE(definition_error_of(fine.with("cwd", "/no/such/folder")), "");
  EXPECT_EQ(definition_error_of(fine.with("heartbeat_timeout", "10s")), "");
  EXPECT_NE(definition_error_of(fine.with("heartbeat_timeout", 10)), "");
  EXPECT_NE(definition_error_of(fine.with("heartbeat_timeout", "0s")), "");
  EXPECT_NE(definition_error_of(fine.with("env", Value::object({{"AETHERIS_TRY", "7"}}))), "");
  EXPECT_NE(definition_error_of(fine.with("env", Value::object({{"A=B", "7"}}))), "");
  EXPECT_NE(definition_error_of(fine.with("env_allow", Value::array({"A B"}))), "");
}

// ---- limits

AE_TEST("command/a timeout kills all processes, also in other sessions and with SIGTERM ignored") {
  const Folder folder;
  const std::string f = folder.path;
  CommandFixture w;
  w.make(sh(fmt::format(
      "(trap '' TERM; sh -c 'echo $PPID' >{0}/stubborn; while :; do sleep 0.05; done) &\n"
      "setsid sh -c 'trap \"\" TERM HUP; echo $$ >{0}/away; sleep 60' &\n"
      "setsid -f sh -c 'echo $$ >{0}/far; sleep 60'\n"
      "echo $$ >{0}/self; wait; sleep 60",
      f)));
  Call call = CommandFixture::call();
  call.timeout = 2s;  // enough for all of them to write their pids, also on a busy machine
  const Duration began = boot_now();
  w.perform(std::move(call));
  const Outcome o = w.wait();
  EXPECT_EQ(o.kind, OutcomeKind::timeout);
  EXPECT_FALSE(o.definite);
  EXPECT_EQ(o.error_code, "timeout");
  EXPECT_LT(boot_now() - began, 2s + 5300ms);
  for (const char* name : {"self", "stubborn", "away", "far"}) {
    EXPECT_FALSE(is_alive(read_pid_file(folder / name))) << name;
  }
}

AE_TEST("command/a program that exits on SIGTERM can clean up, and is still a timeout") {
  const Folder folder;
  CommandFixture w;
  w.make(sh(fmt::format("trap 'echo tidy >{}/note; exit 0' TERM; echo on; sleep 60 & wait",
                        folder.path)));
  Call call = CommandFixture::call();
  call.timeout = 2s;  // enough for the shell to set its trap, also on a busy machine
  w.perform(std::move(call));
  EXPECT_EQ(w.wait().kind, OutcomeKind::timeout);
  EXPECT_EQ(read_text_file(folder / "note"), "tidy\n");
}

// ---- progress reports

struct ReportRecorder : CommandFixture {
  std::vector<std::string> reports;
  Outcome run(const std::string& script, const std::string& heartbeat = {}) {
    Value definition = sh(script);
    if (!heartbeat.empty()) definition = definition.with("heartbeat_timeout", heartbeat);
    make(definition);
    Call c = call();
    c.progress = [this](const Value& report) { reports.push_back(canonical(report)); };
    perform(std::move(c));
    return wait();
  }
};

AE_TEST("command/progress reports are delivered, at least the last complete line") {
  ReportRecorder w;
  const Outcome o = w.run(
      "echo '{\"done\":1}' >&$AETHERIS_PROGRESS_FD; "
      "printf '{\"done\": 2}\\n{\"done\":' >&3; echo ok");
  EXPECT_EQ(o.result, Value("ok")) << o.error_message;
  ASSERT_FALSE(w.reports.empty());
  EXPECT_EQ(w.reports.back(), R"({"done":2})");
}

AE_TEST("command/an invalid or too long line counts as a heartbeat, not as a report") {
  ReportRecorder w;
  EXPECT_EQ(
      w.run("echo '[1' >&3; head -c 4097 /dev/zero | tr '\\0' 7 >&3; echo >&3; echo ok").result,
      Value("ok"));
  EXPECT_TRUE(w.reports.empty());
}

AE_TEST("command/a secret in a report is redacted") {
  ReportRecorder w;
  w.secrets.values["TOKEN"] = "hidden-value";
  w.make(sh("echo \"\\\"$T\\\"\" >&3").with("env", Value::object({{"T", "secret:TOKEN"}})));
  Call c = CommandFixture::call();
  c.progress = [&](const Value& report) { w.reports.push_back(canonical(report)); };
  w.perform(std::move(c));
  EXPECT_EQ(w.wait().kind, OutcomeKind::success);
  ASSERT_EQ(w.reports.size(), 1u);
  EXPECT_EQ(w.reports[0], R"("[secret TOKEN]")");
}

AE_TEST("command/a program without a report within its heartbeat is killed with a timeout") {
  const Folder folder;
  ReportRecorder w;
  const Duration began = boot_now();
  const Outcome o =
      w.run(fmt::format("echo $$ >{}/pid; echo 1 >&3; exec sleep 60", folder.path), "2s");
  EXPECT_EQ(o.kind, OutcomeKind::timeout);
  EXPECT_EQ(o.error_code, "timeout");
  EXPECT_FALSE(o.definite);
  EXPECT_NE(o.error_message.find("reported nothing for 2s"), std::string::npos) << o.error_message;
  EXPECT_GE(boot_now() - began, 2s);
  EXPECT_LT(boot_now() - began, 15s);
  EXPECT_FALSE(is_alive(read_pid_file(folder / "pid")));
}

AE_TEST("command/closing the progress channel is not a report") {
  ReportRecorder w;
  EXPECT_EQ(w.run("exec 3>&-; exec sleep 60", "200ms").kind, OutcomeKind::timeout);
}

AE_TEST_SLOW("command/a program that keeps reporting is not stopped by its heartbeat") {
  ReportRecorder w;
  const Outcome o = w.run(
      "i=0; while [ $i -lt 20 ]; do i=$((i+1)); echo $i >&3; sleep 0.05; done; echo ok", "500ms");
  EXPECT_EQ(o.result, Value("ok")) << o.error_message;
  EXPECT_GE(w.reports.size(), 10u);
  EXPECT_EQ(w.reports.back(), "20");
}

AE_TEST("command/background processes are killed when the program exits") {
  const Folder folder;
  const Outcome o = CommandFixture().run(sh(fmt::format(
      "setsid sleep 60 >/dev/null & echo $! >{}/pid; sleep 61 & echo done; exit 0", folder.path)));
  EXPECT_EQ(o.result, Value("done"));
  EXPECT_FALSE(is_alive(read_pid_file(folder / "pid")));
}

AE_TEST("command/an endless output is ended by the timeout") {
  CommandFixture w;
  w.make(sh("yes"));
  Call call = CommandFixture::call();
  call.timeout = 300ms;
  w.perform(std::move(call));
  EXPECT_EQ(w.wait().kind, OutcomeKind::timeout);
}

void expect_bounded(std::size_t mebibytes) {
  CommandFixture w;
  rusage before{}, after{};
  ::getrusage(RUSAGE_SELF, &before);
  w.make(sh(fmt::format("head -c {} /dev/zero; exit 0", mebibytes << 20)).with("output_max", 1000));
  Call call = CommandFixture::call();
  call.timeout = 120s;
  w.perform(std::move(call));
  ASSERT_TRUE(w.loop.run_until([&] { return w.outcome.has_value(); }, 120s));
  ::getrusage(RUSAGE_SELF, &after);
  ASSERT_EQ(w.outcome->kind, OutcomeKind::success) << w.outcome->error_message;
  ASSERT_TRUE(w.outcome->invalid.has_value());
  const Value& invalid = *w.outcome->invalid;
  EXPECT_EQ(invalid["size"].as_int(), static_cast<std::int64_t>(mebibytes << 20));
  Sha256 hash;
  const std::string zeros(1 << 20, '\0');
  for (std::size_t i = 0; i < mebibytes; ++i) hash.add(zeros);
  EXPECT_EQ(invalid.text("sha256"), to_hex(hash.finish()));
  EXPECT_LT(after.ru_maxrss - before.ru_maxrss, 16 << 10) << "KiB";
}

AE_TEST("command/a large output is read and hashed in bounded memory") { expect_bounded(16); }
AE_TEST_SLOW("command/an output of 1 GiB is read and hashed in bounded memory") {
  expect_bounded(1024);
}

AE_TEST("command/an output of exactly the limit is kept") {
  const Value definition = sh("printf 12345678").with("output_max", 8);
  EXPECT_EQ(CommandFixture().run(definition).result, Value("12345678"));
  EXPECT_TRUE(CommandFixture().run(definition.with("output_max", 7)).invalid.has_value());
}

AE_TEST("command/an output over 1 MiB is invalid by default") {
  const auto printing = [](std::size_t bytes) {
    return sh(fmt::format("head -c {} /dev/zero | tr '\\0' x", bytes));
  };
  EXPECT_FALSE(CommandFixture().run(printing(kOutputMax)).invalid.has_value());
  EXPECT_TRUE(CommandFixture().run(printing(kOutputMax + 1)).invalid.has_value());
}

// ---- before the start, and while it runs

AE_TEST("command/a program starts only after its process group is recorded") {
  const Folder folder;
  CommandFixture w;
  w.make(sh(fmt::format("echo ran >{}/ran", folder.path)));
  Call call = CommandFixture::call();
  std::optional<Value> note;
  async::Done<Status> noted;
  call.note_in_flight = [&](Value n, async::Done<Status> done) {
    note = std::move(n);
    noted = std::move(done);
  };
  w.perform(std::move(call));
  ASSERT_TRUE(w.loop.run_until([&] { return note.has_value(); }));
  EXPECT_FALSE(w.loop.run_until([&] { return w.outcome.has_value(); }, 100ms));
  EXPECT_EQ(::access((folder / "ran").c_str(), F_OK), -1);
  const auto group = static_cast<pid_t>((*note)["pgid"].as_int());
  const auto leader = process_entry(group);
  ASSERT_TRUE(leader.has_value());
  EXPECT_EQ(leader->group, group);
  EXPECT_EQ(leader->start, static_cast<std::uint64_t>((*note)["start"].as_int()));
  EXPECT_EQ(note->text("boot_id"), boot_id());
  noted({});
  EXPECT_EQ(w.wait().kind, OutcomeKind::success);
  EXPECT_EQ(read_text_file(folder / "ran"), "ran\n");
}

AE_TEST("command/a program whose process group cannot be recorded never runs") {
  const Folder folder;
  CommandFixture w;
  w.make(sh(fmt::format("echo ran >{}/ran", folder.path)));
  Call call = CommandFixture::call();
  call.note_in_flight = [](Value, async::Done<Status> done) {
    done(fail(Code::unavailable, "the store is unavailable"));
  };
  w.perform(std::move(call));
  const Outcome o = w.wait();
  EXPECT_EQ(o.error_code, "not_sent");
  EXPECT_TRUE(o.definite);
  EXPECT_EQ(::access((folder / "ran").c_str(), F_OK), -1);
}

AE_TEST("command/a call that is not started within send_within is not sent") {
  for (const Duration within : {Duration(0), Duration(150ms)}) {
    CommandFixture w;
    w.make(sh("true"));
    Call call = CommandFixture::call();
    call.send_within = within;
    std::vector<async::Done<Status>> kept;
    call.note_in_flight = [&](Value, async::Done<Status> done) { kept.push_back(std::move(done)); };
    w.perform(std::move(call));
    const Outcome o = w.wait();
    EXPECT_EQ(o.kind, OutcomeKind::failure);
    EXPECT_TRUE(o.definite);
    EXPECT_EQ(o.error_code, "not_sent");
    for (auto& noted : kept) noted({});  // too late: no effect
  }
}

AE_TEST("command/a call abandoned before its start is not sent") {
  CommandFixture w;
  w.make(sh("true"));
  w.perform(CommandFixture::call());
  w.tool->abandon(InvocationId("another"), 1);
  w.tool->abandon(InvocationId("0123456789abcdef"), 1);
  w.tool->abandon(InvocationId("0123456789abcdef"), 1);
  EXPECT_EQ(w.wait().error_code, "not_sent");
}

AE_TEST("command/a call abandoned while running is killed with an unknown outcome") {
  const Folder folder;
  CommandFixture w;
  w.make(sh(fmt::format("echo $$ >{}/pid; sleep 60", folder.path)));
  w.perform(CommandFixture::call());
  ASSERT_TRUE(w.loop.run_until([&] { return !read_text_file(folder / "pid").empty(); }));
  w.tool->abandon(InvocationId("0123456789abcdef"), 1);
  const Outcome o = w.wait();
  EXPECT_EQ(o.kind, OutcomeKind::unknown);
  EXPECT_EQ(o.error_code, "killed");
  EXPECT_FALSE(is_alive(read_pid_file(folder / "pid")));
}

AE_TEST("command/destroying the tool kills its programs and completes its calls") {
  const Folder folder;
  CommandFixture w;
  w.make(sh(fmt::format("echo $$ >{}/pid; sleep 60", folder.path)));
  w.perform(CommandFixture::call());
  ASSERT_TRUE(w.loop.run_until([&] { return !read_text_file(folder / "pid").empty(); }));
  w.tool.reset();
  EXPECT_EQ(w.wait().kind, OutcomeKind::unknown);
  EXPECT_TRUE(wait_until_gone(read_pid_file(folder / "pid"), 2s));
}

AE_TEST("command/concurrent calls are independent") {
  CommandFixture w;
  w.make(Value::object({{"command", Value::array({"/bin/echo", "${ .args.n }"})}}));
  std::map<int, Outcome> outcomes;
  for (int n = 0; n < 40; ++n) {
    Call call = CommandFixture::call(Value::object({{"n", n}}));
    call.invocation = InvocationId(fmt::format("call{}", n));
    auto permit = testing::PermitForTests::make(call.invocation, call.try_no);
    w.tool->perform(std::move(permit), std::move(call), [&outcomes, n](Outcome o) {
      EXPECT_TRUE(outcomes.emplace(n, std::move(o)).second);
    });
  }
  ASSERT_TRUE(w.loop.run_until([&] { return outcomes.size() == 40; }, 60s));
  for (const auto& [n, o] : outcomes) EXPECT_EQ(o.result, Value(std::to_string(n)));
}

}  // namespace
}  // namespace ae::tools
