// aetheris_sim: storms by seed, the sweep, the canary. See docs/simulation.md.
//
//   aetheris_sim --seeds 2000 [--from N] [--jobs J] [--twice]    --seed N [--verbose]    --long
//   aetheris_sim --sweep [--jobs J] [--full] [--only CASE | --share N|COMMIT]
//                    --sweep-case N --crashes 3,7 [--verbose]
//   aetheris_sim --canary
//
// Prints `SEED … COMMIT …` first, and last the command that reproduces a failure.
// Exit codes: 0 · 70 crash · 71 liveness · 72 correctness · 73 the canary was found, as required ·
// 2 usage.
#include <fmt/core.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/hash.h"
#include "sim/check.h"
#include "sim/storm.h"
#include "sim/sweep.h"

namespace ae::sim {
namespace {

enum Exit { kOk = 0, kUsage = 2, kCrash = 70, kLiveness = 71, kCorrectness = 72, kCanary = 73 };

// Failpoints of API.md; a run that never reaches one of them reports it.
constexpr std::string_view kPoints[] = {
    "tool.before",        "tool.after",          "effect.after_put", "append.before",
    "append.after",       "ledger.after_commit", "claim.after",      "heartbeat.before",
    "signal.after_inbox", "timer.after_fire"};
// Further marks that a long run must reach.
constexpr std::string_view kMarks[] = {"approval.approved",
                                       "approval.cancelled",
                                       "approval.rejected",
                                       "approval.timed_out",
                                       "budget.exceeded",
                                       "budget.raised",
                                       "call.settled_by_500",
                                       "child.awaited",
                                       "child.cancelled",
                                       "child.charged",
                                       "child.completed",
                                       "child.detached",
                                       "child.ended_early",
                                       "child.failed",
                                       "child.in_doubt",
                                       "child.of_child",
                                       "clock.jump",
                                       "confirm.accepted",
                                       "confirm.accepted_before",
                                       "confirm.failed",
                                       "confirm.match",
                                       "confirm.mismatch",
                                       "confirm.not_accepted",
                                       "confirm.requested",
                                       "confirm.unconfirmed",
                                       "confirm.unreachable",
                                       "confirm.warned",
                                       "context.summary_checked",
                                       "death.in_recovery",
                                       "death.while_streaming",
                                       "early.delivered",
                                       "end.completed_with_unknown_outcome",
                                       "end.unknown_outcome",
                                       "ended.cancelled",
                                       "ended.completed",
                                       "ended.failed",
                                       "fails.append.before",
                                       "fails.effect.after_put",
                                       "fails.heartbeat.before",
                                       "fails.ledger.after_commit",
                                       "fails.tool.after",
                                       "fails.tool.before",
                                       "fork.consent_by_name",
                                       "fork.consent_to_all",
                                       "fork.imported",
                                       "fork.impossible",
                                       "fork.loop_continued",
                                       "fork.made",
                                       "fork.origin_ended",
                                       "fork.origin_running",
                                       "fork.usage_inherited",
                                       "fork.without_consent",
                                       "loop.requested_tools",
                                       "message.delivered",
                                       "model.answered",
                                       "model.busy",
                                       "model.repair_requested",
                                       "model.retried",
                                       "model.streamed",
                                       "pause",
                                       "pause.longer_than_lease",
                                       "paused",
                                       "plan.effect_carried",
                                       "plan.effect_dropped",
                                       "plan.invalid",
                                       "plan.made_by_model",
                                       "plan.replaced",
                                       "plan.too_early",
                                       "probe.happened",
                                       "probe.not_happened",
                                       "question.approved",
                                       "question.cancelled",
                                       "question.declined",
                                       "question.opened",
                                       "question.rejected",
                                       "resource.changed_externally",
                                       "tools.swapped",
                                       "undo.abandoned",
                                       "undo.done",
                                       "undo.uncompensated",
                                       "user.accepted_in_inbox",
                                       "user.acknowledged",
                                       "user.approve",
                                       "user.change_accept",
                                       "user.change_fail",
                                       "user.duplicate",
                                       "user.manual_undo_fail",
                                       "user.manual_undo_happened",
                                       "user.manual_undo_not_happened",
                                       "user.not_settled",
                                       "user.pause",
                                       "user.plan",
                                       "user.raise",
                                       "user.reject",
                                       "user.resolve_fail",
                                       "user.resolve_happened",
                                       "user.resolve_not_happened",
                                       "user.resume",
                                       "user.too_early",
                                       "user.verify_again",
                                       "verifier.match",
                                       "verifier.mismatch",
                                       "verifier.outage",
                                       "verifier.unreachable"};
// Each of these faults must occur at each of these store calls, which a runtime makes on its own.
constexpr std::string_view kFaults[] = {"fail_before", "fail_after", "delay", "delay_answer"};
constexpr std::string_view kMethods[] = {"claim", "commit",   "due",      "heartbeat",
                                         "load",  "next_due", "put_inbox"};

struct Options {
  enum class Verb { none, seeds, sweep, sweep_case, canary } verb = Verb::none;
  std::uint64_t seeds = 0, from = 1, sweep_case = 0;
  std::optional<std::uint64_t> only;   // only this case of the sweep
  std::optional<std::uint64_t> share;  // the part of the sweep that this number selects
  std::string commit = "unknown", crashes;
  std::size_t jobs = 1;
  bool verbose = false, twice = false, full = false;
};

// The work queue of the child processes.
struct Queue {
  std::atomic<std::uint64_t> next = 0;
};

// The results of a child process, in memory shared with the parent.
struct Shared {
  std::uint64_t current = 0;  // the current seed or case
  std::uint64_t done = 0, jobs = 0, events = 0;
  std::uint64_t points = 0, recovery_points = 0, third_points = 0;
  std::uint64_t busy_us = 0;
  bool stuck = false, wrong = false;
  std::size_t violations = 0, text_size = 0;
  char text[1u << 16];
  char marks[1u << 14];  // "name count\n"
};

std::uint64_t cpu_us() {
  timespec t{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return static_cast<std::uint64_t>(t.tv_sec) * 1'000'000 +
         static_cast<std::uint64_t>(t.tv_nsec) / 1000;
}

void record_violation(Shared& shared, const Report& report, const std::string& where,
                      const std::string& repeat) {
  shared.stuck = shared.stuck || report.stuck;
  shared.wrong = shared.wrong || report.wrong;
  shared.violations += report.violations.size();
  std::string text;
  for (std::size_t i = 0; i < report.violations.size() && i < 6; ++i) {
    const Violation& v = report.violations[i];
    text += fmt::format("{}  {}\n    {} {}\n", where, v.rule, v.job, v.what.substr(0, 1500));
  }
  if (!text.empty()) text += fmt::format("  repeat: {}\n", repeat);
  const std::size_t free_bytes = sizeof shared.text - shared.text_size;
  const std::size_t size = std::min(free_bytes, text.size());
  std::memcpy(shared.text + shared.text_size, text.data(), size);
  shared.text_size += size;
}

using Marks = std::map<std::string, std::uint64_t, std::less<>>;

void add_marks(Shared& shared, const Marks& marks) {
  std::string text;
  for (const auto& [mark, times] : marks) text += fmt::format("{} {}\n", mark, times);
  std::memcpy(shared.marks, text.data(), std::min(text.size(), sizeof shared.marks - 1));
}

void read_marks(const Shared& shared, Marks& marks) {
  std::string_view text(shared.marks);
  while (!text.empty()) {
    const std::size_t space = text.find(' '), end = text.find('\n');
    if (space == text.npos || end == text.npos) return;
    std::uint64_t times = 0;
    std::from_chars(text.data() + space + 1, text.data() + end, times);
    marks[std::string(text.substr(0, space))] += times;
    text.remove_prefix(end + 1);
  }
}

void storms(const Options& o, Queue& queue, Shared& shared) {
  PlanBook plans;
  Marks marks;
  for (std::uint64_t i = 0; (i = queue.next++) < o.seeds;) {
    const std::uint64_t seed = o.from + i;
    shared.current = seed;
    StormResult result = run_storm({.seed = seed, .verbose = o.verbose}, plans);
    if (o.twice || seed % 50 == 0) {
      const StormResult again = run_storm({.seed = seed}, plans);
      if (again.last_draw != result.last_draw) {
        result.report.violate("DET the same seed gives the same run", {}, "the last draws differ");
      }
      shared.jobs += again.report.jobs;
      shared.events += again.report.events;
    }
    shared.done++;
    shared.jobs += result.report.jobs;
    shared.events += result.report.events;
    for (const auto& [mark, times] : result.report.marks) marks[mark] += times;
    record_violation(shared, result.report, fmt::format("seed {}", seed),
                     fmt::format("./dev sim --seed {} --verbose", seed));
    if (shared.violations > 20) break;
  }
  add_marks(shared, marks);
}

// The crashes before the first violation, in the format of `--crashes`.
std::string crashes_of(const Report& report) {
  if (report.violations.empty()) return {};
  const std::string& what = report.violations.front().what;
  const std::size_t begin = what.find("crashes ") + 8;
  return what.substr(begin, what.find(':', begin) - begin);
}

// Cases come in groups of four that differ in durability and leases only: each quarter has some of
// every kind.
bool is_selected(const Options& o, std::size_t i) {
  if (o.only) return i == *o.only;
  return !o.share || (i + i / 4 + *o.share) % 4 == 0;
}

void sweeps(const Options& o, Queue& queue, Shared& shared) {
  PlanBook plans;
  Marks marks;
  const std::vector<SweepCase> cases = sweep_cases();
  const SweepDepth depth{.second_one_in = o.share ? 3u : 1u,
                         .second_from = o.share.value_or(0) / 4,
                         .third_one_in = o.full ? 1u : 4u};
  for (std::size_t i = 0; (i = queue.next++) < cases.size();) {
    if (!is_selected(o, i)) continue;
    shared.current = i;
    Report report;
    const SweepCount count = sweep(cases[i], depth, plans, report);
    shared.done++;
    shared.points += count.points;
    shared.recovery_points += count.recovery_points;
    shared.third_points += count.third_points;
    shared.jobs += count.runs;
    shared.events += report.events;
    for (const auto& [mark, times] : report.marks) marks[mark] += times;
    record_violation(
        shared, report, fmt::format("case {}", i),
        fmt::format("./dev sim --sweep-case {} --crashes {} --verbose", i, crashes_of(report)));
    if (o.verbose) {
      std::printf("%3zu %6llu %8llu %8llu  %s\n", i, static_cast<unsigned long long>(count.points),
                  static_cast<unsigned long long>(count.recovery_points),
                  static_cast<unsigned long long>(count.third_points), cases[i].name().c_str());
      std::fflush(stdout);
    }
  }
  add_marks(shared, marks);
}

void* shared_memory(std::size_t size) {
  void* memory = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  AE_CHECK(memory != MAP_FAILED);
  return memory;
}

// Runs `work` in `o.jobs` processes; the crash of a child counts as a violation.
template <class Work>
std::vector<Shared*> run_in_children(const Options& o, Work work, bool& crashed) {
  std::vector<Shared*> all;
  std::vector<pid_t> children;
  Queue* queue = new (shared_memory(sizeof(Queue))) Queue;
  std::fflush(stdout);
  for (std::size_t child = 0; child < o.jobs; ++child) {
    all.push_back(new (shared_memory(sizeof(Shared))) Shared);
    const pid_t pid = fork();
    AE_CHECK(pid >= 0);
    if (pid == 0) {
      const std::uint64_t begin = cpu_us();
      work(*queue, *all.back());
      all.back()->busy_us = cpu_us() - begin;
      std::fflush(stdout);
      _exit(0);
    }
    children.push_back(pid);
  }
  for (std::size_t child = 0; child < o.jobs; ++child) {
    int status = 0;
    waitpid(children[child], &status, 0);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0) continue;
    crashed = true;
    std::printf("crashed at seed or case %llu\n",
                static_cast<unsigned long long>(all[child]->current));
  }
  return all;
}

std::string grouped(std::uint64_t n) {
  std::string text = std::to_string(n);
  for (std::size_t at = text.size(); at > 3; at -= 3) text.insert(at - 3, ",");
  return text;
}

int end_of(const std::vector<Shared*>& all, bool crashed, std::uint64_t& violations) {
  bool stuck = false, wrong = false;
  for (const Shared* shared : all) {
    std::printf("%.*s", static_cast<int>(shared->text_size), shared->text);
    violations += shared->violations;
    stuck = stuck || shared->stuck;
    wrong = wrong || shared->wrong;
  }
  return crashed ? kCrash : wrong ? kCorrectness : stuck ? kLiveness : kOk;
}

void show_marks(const std::vector<Shared*>& all, bool storms_too) {
  Marks marks;
  for (const Shared* shared : all) read_marks(*shared, marks);
  std::string never;
  std::printf("marks:");
  for (const auto& [mark, times] : marks)
    std::printf(" %s %s ·", mark.c_str(), grouped(times).c_str());
  std::printf("\n");
  for (std::string_view point : kPoints) {
    if (!marks.contains(point)) never += fmt::format(" {}", point);
  }
  const auto require_mark = [&](const std::string& mark) {
    if (storms_too && !marks.contains(mark)) never += " " + mark;
  };
  for (std::string_view mark : kMarks) require_mark(std::string(mark));
  for (std::string_view method : kMethods) {
    for (std::string_view fault : kFaults) {
      require_mark(fmt::format("store.{}.{}", fault, method));
    }
  }
  std::printf("never reached:%s\n", never.empty() ? " none" : never.c_str());
}

int run_seeds(const Options& o) {
  const auto begin = std::chrono::steady_clock::now();
  bool crashed = false;
  const auto all =
      run_in_children(o, [&](Queue& queue, Shared& shared) { storms(o, queue, shared); }, crashed);
  std::uint64_t violations = 0, done = 0, jobs = 0, events = 0, busy = 0;
  const int end = end_of(all, crashed, violations);
  for (const Shared* shared : all) {
    done += shared->done;
    jobs += shared->jobs;
    events += shared->events;
    busy += shared->busy_us;
  }
  show_marks(all, o.seeds >= 500);
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  std::printf(
      "%s seeds, %s violations; %s jobs with faults, %s events in %.1f s; %s jobs a second and "
      "core\n",
      grouped(done).c_str(), grouped(violations).c_str(), grouped(jobs).c_str(),
      grouped(events).c_str(), seconds, grouped(busy ? jobs * 1'000'000 / busy : 0).c_str());
  std::printf("repeat: ./dev sim --seeds %llu --from %llu\n",
              static_cast<unsigned long long>(o.seeds), static_cast<unsigned long long>(o.from));
  return end;
}

int run_sweep(const Options& o) {
  const auto begin = std::chrono::steady_clock::now();
  bool crashed = false;
  const auto all =
      run_in_children(o, [&](Queue& queue, Shared& shared) { sweeps(o, queue, shared); }, crashed);
  std::uint64_t violations = 0, points = 0, recovery = 0, third = 0, runs = 0;
  const int end = end_of(all, crashed, violations);
  for (const Shared* shared : all) {
    points += shared->points;
    recovery += shared->recovery_points;
    third += shared->third_points;
    runs += shared->jobs;
  }
  show_marks(all, false);
  std::size_t selected = 0;
  for (std::size_t i = 0; i < sweep_cases().size(); ++i) selected += is_selected(o, i) ? 1 : 0;
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  std::printf(
      "%s crash points, %s recovery crash points, %s third crash points, %s violations; "
      "%zu cases, %s runs in %.1f s\n",
      grouped(points).c_str(), grouped(recovery).c_str(), grouped(third).c_str(),
      grouped(violations).c_str(), selected, grouped(runs).c_str(), seconds);
  const std::string share = o.share ? fmt::format(" --share {}", *o.share) : "";
  std::printf("repeat: ./dev sim --sweep%s%s\n", o.full ? " --full" : "", share.c_str());
  return end;
}

int run_case(const Options& o) {
  const std::vector<SweepCase> cases = sweep_cases();
  if (o.sweep_case >= cases.size()) return kUsage;
  std::vector<std::uint64_t> crashes;
  for (std::size_t at = 0; at < o.crashes.size();) {
    std::uint64_t n = 0;
    const auto [end, problem] =
        std::from_chars(o.crashes.data() + at, o.crashes.data() + o.crashes.size(), n);
    if (problem != std::errc()) return kUsage;
    crashes.push_back(n);
    at = static_cast<std::size_t>(end - o.crashes.data()) + 1;
  }
  PlanBook plans;
  const SmallResult end = run_small_job(cases[o.sweep_case], crashes, plans, o.verbose);
  std::printf("%s: %s %s\n", cases[o.sweep_case].name().c_str(), end.status.c_str(),
              end.result.c_str());
  for (const Violation& v : end.report.violations) {
    std::printf("  %s\n    %s %s\n", v.rule.c_str(), v.job.c_str(), v.what.c_str());
  }
  return end.report.wrong ? kCorrectness : end.report.stuck ? kLiveness : kOk;
}

// Searches each injected bug over a few seeds. Finding all is the good result, and returns 73.
int run_canary(const Options& o) {
  constexpr struct {
    Canary canary;
    const char* name;
    std::string_view rule;
  } kCanaries[] = {
      {Canary::duplicate_request, "requests arrive twice", "A1 at_most_once"},
      {Canary::lost_signal, "the store loses acknowledged signals", "N1 an accepted"},
      {Canary::unclaimed_job, "a job is never claimed", "PR1 all jobs end"},
      {Canary::false_approval, "a rejection becomes an approval", "P2 every user action"},
      {Canary::double_message, "a message is enqueued twice", "N3 messages are delivered"},
      {Canary::false_probe, "probes report that no request arrived", "A1 at_most_once"},
      {Canary::unlimited_queue, "a queue has no limit", "F8 no queue"},
      {Canary::double_model_request, "model requests arrive twice", "M2 a model receives"},
      {Canary::always_matching_verifier, "verifiers always report a match",
       "V2 a recorded verdict"},
      {Canary::mutating_verifier, "verifiers change the resources that they check",
       "V5 a verifier only reads"},
      {Canary::fork_without_consent, "a fork repeats calls without consent", "K2 a fork repeats"},
      {Canary::oversized_drop, "a plan drops more nodes than requested", "R3 a plan matches"},
      {Canary::oversized_raise, "a budget is raised beyond the request", "B1 no call exceeds"},
      {Canary::lost_child_request, "the end of a child does not reach its parent",
       "PR1 all jobs end"}};
  bool all_found = true;
  for (const auto& canary : kCanaries) {
    PlanBook plans;
    std::string found;
    for (std::uint64_t seed = o.from; found.empty() && seed < o.from + 300; ++seed) {
      const StormResult result =
          run_storm({.seed = seed, .canary = canary.canary, .verbose = o.verbose}, plans);
      for (const Violation& v : result.report.violations) {
        if (found.empty() && v.rule.starts_with(canary.rule)) {
          found = fmt::format("seed {}  {}\n    {} {}", seed, v.rule, v.job, v.what.substr(0, 300));
        }
      }
    }
    all_found = all_found && !found.empty();
    std::printf("canary: %s: %s\n", canary.name,
                found.empty() ? "NOT FOUND" : ("found\n  " + found).c_str());
  }
  std::printf("repeat: ./dev sim --canary --from %llu\n", static_cast<unsigned long long>(o.from));
  return all_found ? kCanary : kOk;
}

int usage() {
  std::fputs(
      "aetheris_sim --seeds N [--from SEED|COMMIT] [--twice] | --seed S [--verbose] | --long\n"
      "             --sweep [--full] [--only CASE | --share N|COMMIT] | --sweep-case N "
      "[--crashes I,J,K] [--verbose] "
      "| --canary\n"
      "             [--jobs J] [--commit HASH]\n",
      stderr);
  return kUsage;
}

std::optional<std::uint64_t> index_of(std::string_view text) {
  std::uint64_t n = 0;
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), n);
  if (problem != std::errc() || end != text.data() + text.size()) return {};
  return n;
}

std::optional<std::uint64_t> count_of(std::string_view text) {
  const auto n = index_of(text);
  return n == 0u ? std::nullopt : n;
}

// A number, or a hash of any other text (a commit id).
std::uint64_t seed_of(std::string_view text) {
  if (const auto n = index_of(text)) return *n;
  std::uint64_t n = 0;
  const Hash hash = sha256(text);
  for (int i = 0; i < 6; ++i) n = n << 8 | hash.bytes[static_cast<std::size_t>(i)];
  return n;
}

// False: it has printed the error.
bool read(int argc, char** argv, Options& o) {
  using Verb = Options::Verb;
  const auto wrong = [](std::string_view flag, std::string_view what) {
    std::fprintf(stderr, "%.*s %.*s\n", static_cast<int>(flag.size()), flag.data(),
                 static_cast<int>(what.size()), what.data());
    return false;
  };
  for (int i = 1; i < argc; ++i) {
    const std::string_view flag = argv[i];
    const auto value = [&]() -> std::string_view { return i + 1 < argc ? argv[++i] : ""; };
    const auto is_any_of = [&](std::initializer_list<std::string_view> flags) {
      return std::ranges::find(flags, flag) != flags.end();
    };
    if (is_any_of({"--seeds", "--jobs", "--only", "--sweep-case"})) {
      const auto n =
          flag == "--only" || flag == "--sweep-case" ? index_of(value()) : count_of(value());
      if (!n) return wrong(flag, "takes a number");
      if (flag == "--seeds") o.verb = Verb::seeds, o.seeds = *n;
      if (flag == "--jobs") o.jobs = std::clamp<std::size_t>(*n, 1, 64);
      if (flag == "--only") o.only = n;
      if (flag == "--sweep-case") o.verb = Verb::sweep_case, o.sweep_case = *n;
    } else if (is_any_of({"--seed", "--from", "--share", "--crashes", "--commit"})) {
      const std::string_view text = value();
      if (text.empty()) return wrong(flag, "takes a value");
      if (flag == "--seed") o.verb = Verb::seeds, o.seeds = 1;
      if (flag == "--seed" || flag == "--from") o.from = seed_of(text);
      if (flag == "--share") o.share = seed_of(text);
      if (flag == "--crashes") o.crashes = text;
      if (flag == "--commit") o.commit = text;
    } else if (flag == "--long") {
      o.verb = Verb::seeds, o.seeds = 100'000;
    } else if (flag == "--sweep") {
      o.verb = Verb::sweep;
    } else if (flag == "--canary") {
      o.verb = Verb::canary;
    } else if (flag == "--verbose") {
      o.verbose = true;
    } else if (flag == "--twice") {
      o.twice = true;
    } else if (flag == "--full") {
      o.full = true;
    } else {
      return wrong(flag, "is no option of this program");
    }
  }
  const std::uint64_t cases = sweep_cases().size();
  if (o.only.value_or(o.sweep_case) >= cases) {
    return wrong("the sweep", fmt::format("has the cases 0 to {}", cases - 1));
  }
  return o.verb != Verb::none;
}

int run(int argc, char** argv) {
  Options o;
  if (!read(argc, argv, o)) return usage();
  std::printf("SEED %llu COMMIT %s\n", static_cast<unsigned long long>(o.from), o.commit.c_str());
  switch (o.verb) {
    case Options::Verb::seeds:
      return run_seeds(o);
    case Options::Verb::sweep:
      return run_sweep(o);
    case Options::Verb::sweep_case:
      return run_case(o);
    case Options::Verb::canary:
      return run_canary(o);
    case Options::Verb::none:
      break;
  }
  return usage();
}

}  // namespace
}  // namespace ae::sim

int main(int argc, char** argv) { return ae::sim::run(argc, argv); }
